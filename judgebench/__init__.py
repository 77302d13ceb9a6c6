"""judgebench: evaluate language models with language-model judges.

    import judgebench
    verdicts = judgebench.judge(frame, judge="gpt-4.1", protocol="pairwise")
    table = judgebench.rank(verdicts)
    result = judgebench.run(["benchmark=starter", "limit=24"])
    replies = judgebench.query("SELECT judge, model_b, output FROM judgements")

Nothing heavy is imported before the first of these is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from judgebench.api import judge, query, rank, run

__version__ = "0.1.0"
__all__ = ["__version__", "judge", "query", "rank", "run"]


def __getattr__(name: str) -> Any:
    if name in ("judge", "query", "rank", "run"):
        from judgebench import api

        return getattr(api, name)
    raise AttributeError(f"module 'judgebench' has no attribute {name!r}")
