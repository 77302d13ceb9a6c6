"""Why groups of rows hit or missed the store, and who answered them, in lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from judgebench.request import Descriptor, Request
from judgebench.store import Reason, RoleRoot
from judgebench.store.root import Served

LOOKS = 5  # a descriptor, for why its keys are not stored: each reads all its subjects

# Who a server said it was: served model, fingerprint, backend version.
Identity = tuple[str | None, str | None, str | None]


@dataclass
class Missed:
    """Keys of one descriptor that are not stored, for one kind of reason."""

    descriptor: Descriptor
    reason: Reason
    keys: int = 0


@dataclass
class Misses:
    """What is not stored, and why. Noted before it is asked, since then it is stored."""

    groups: dict[tuple[str, str], Missed] = field(default_factory=dict)
    _looked: dict[str, tuple[int, Reason]] = field(default_factory=dict)

    def note(self, store: RoleRoot, misses: Iterable[Request]) -> None:
        """Count misses of a chunk; of each descriptor, the first one's reason speaks for the chunk."""
        chunk: dict[Descriptor, dict[object, Request]] = {}
        for request in misses:
            if request.descriptor.provider != "shipped":  # costs nothing
                chunk.setdefault(request.descriptor, {})[request.key] = request
        for descriptor, requests in chunk.items():
            looks, reason = self._looked.get(descriptor.hash, (0, None))
            if reason is None or looks < LOOKS:
                reason = store.why_missed(next(iter(requests.values())))
                self._looked[descriptor.hash] = (looks + 1, reason)
            group = (descriptor.hash, reason.kind)
            self.groups.setdefault(group, Missed(descriptor, reason)).keys += len(requests)

    def told(self, stage: str, names: Mapping[str, str], *, everything: bool) -> Iterator[str]:
        """A line a group; what nobody could have expected to be stored only if `everything` is wanted."""
        for missed in self.groups.values():
            if missed.reason.expected or everything:
                name = names.get(missed.descriptor.hash, missed.descriptor.model)
                yield f"{missed.keys:,} {stage} of {name} not stored: {missed.reason.text}"


def hits_told(stage: str, sources: Iterable[Served], names: Mapping[str, str]) -> Iterator[str]:
    """Where stored answers came from and how old they are, a line a source."""
    for served in sources:
        name = names.get(served.descriptor.hash, served.descriptor.model)
        ages = served.oldest[:10]
        if served.newest[:10] != ages:
            ages += f" to {served.newest[:10]}"
        yield f"{served.rows:,} {stage} of {name} from {served.root} ({served.descriptor.hash[:8]}), {ages}"


def mixed(served: Mapping[Descriptor, Counter[Identity]], names: Mapping[str, str]) -> Iterator[str]:
    """A line for each model whose name stood for several: what servers said of themselves, with counts."""
    for descriptor, counter in served.items():
        for what, at in (("model", 0), ("backend version", 2), ("fingerprint", 1)):
            kinds: Counter[str] = Counter()
            for identity, rows in counter.items():
                if (kind := identity[at]) is not None:
                    kinds[kind] += rows
            if len(kinds) > 1:
                name = names.get(descriptor.hash, descriptor.model)
                yield f"{name} was served by more than one {what}: {_counted(kinds.most_common())}"
                break


def _counted(kinds: Sequence[tuple[str, int]], limit: int = 4) -> str:
    shown = ", ".join(f"{kind} ({rows:,})" for kind, rows in kinds[:limit])
    return shown if len(kinds) <= limit else f"{shown} and {len(kinds) - limit} more"
