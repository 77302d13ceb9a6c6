"""The store: what was paid for, kept once, found by key, deleted by column."""

from judgebench.store.nearest import Reason
from judgebench.store.root import Answer, RoleRoot, default_root

__all__ = ["Answer", "Reason", "RoleRoot", "default_root"]
