"""The store: what was paid for, kept once, found by key, deleted by column."""

from judgebench.store.root import Answer, RoleRoot, default_root

__all__ = ["Answer", "RoleRoot", "default_root"]
