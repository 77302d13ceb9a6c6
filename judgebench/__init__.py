"""judgebench: evaluate language models with language-model judges."""
