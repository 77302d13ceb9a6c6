"""A role root: the store of one stage, content-addressed, read in chunks and written as it arrives.

    {store.root}/{role}/{provider}/{model}/{descriptor_hash}/metadata.json + {role}.db

Reading is by key and columnar; writing goes through one thread (`store.writer`). The store knows
requests, not what they are for: templates, readers and tables are elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from judgebench import __version__
from judgebench.engine import Attempt, Failure, Response
from judgebench.errors import StoreError
from judgebench.request import Descriptor, Key, Request
from judgebench.store import layout, schema
from judgebench.store.claims import Claims
from judgebench.store.filesystem import is_network
from judgebench.store.nearest import Reason, why_missed
from judgebench.store.reuse import REUSED, cut, siblings, unfit
from judgebench.store.schema import now
from judgebench.store.writer import Write, Writer, bound

CREATED_BY = f"judgebench {__version__}"


def root_of(store: Mapping[str, Any]) -> Path:
    """The store root that a conf's `store` names, else the default one."""
    named = store.get("root")
    return Path(str(named)).expanduser().absolute() if named else default_root()


class Answer(NamedTuple):
    """A stored answer, as the stages need it. `hit`: it was there before this run asked."""

    output: str
    reasoning: str | None = None
    finish_reason: str | None = None
    top_logprobs: str | None = None
    origin: str = "paid"
    served_model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    created_at: str = ""
    fingerprint: str | None = None
    backend_version: str | None = None
    hit: bool = False


_READ = tuple(name for name in Answer._fields if name != "hit")
_AT = tuple(schema.ANSWER_COLUMNS.index(name) for name in _READ)
_LOOKUP = (
    f"SELECT input_hash, sample, {', '.join(_READ)} FROM responses "
    "WHERE refresh_at IS NULL AND input_hash IN (%s)"
)
_KNOWN = "SELECT subject_key FROM subjects WHERE subject_key IN (%s)"


def default_root() -> Path:
    """`$JUDGEBENCH_STORE`, else the user's data folder."""
    named = os.environ.get("JUDGEBENCH_STORE")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("judgebench", appauthor=False)) / "store"


@dataclass
class Served:
    """How many answers one descriptor's files served, and from when they are."""

    root: Path
    descriptor: Descriptor
    rows: int = 0
    oldest: str = "9"
    newest: str = ""

    def note(self, answers: Iterable[Answer]) -> None:
        """Count answers."""
        instants = [answer.created_at for answer in answers]
        self.rows += len(instants)
        self.oldest = min(self.oldest, *instants)
        self.newest = max(self.newest, *instants)


class _Source(NamedTuple):
    """A place where answers to a request may lie."""

    root: Path
    descriptor: Descriptor


class RoleRoot:
    """The answers of one role below a store root. Methods may be called from any thread.

    Args:
        root: the store root.
        role: `completions` or `judgements`.
        run_id: noted on every row that this run adds.
        throw_away: keep everything in a temporary folder that goes with `close` (mode `off`).
        read_only: look only; new subjects of stored answers are not noted.
        also: further store roots, which serve and are never written.
        fresh_since: paid answers from before this instant are misses, and are superseded by new ones.
    """

    def __init__(
        self,
        root: Path,
        role: str,
        run_id: str,
        *,
        throw_away: bool = False,
        read_only: bool = False,
        also: Sequence[Path] = (),
        fresh_since: str | None = None,
    ) -> None:
        self.role, self.run_id = role, run_id
        self._temporary = tempfile.mkdtemp(prefix="judgebench-") if throw_away else None
        self.root = Path(self._temporary or root)
        self._also = () if throw_away else also
        self._fresh_since = fresh_since
        self._writer = Writer(self.root, role)
        self._claims = Claims(self.root, role)
        self._readers: dict[Path, sqlite3.Connection] = {}
        self._siblings: dict[str, list[_Source]] = {}
        self._reading = threading.Lock()
        self._read_only = read_only
        self.unwritten_subjects = 0
        self.served: dict[tuple[Path, str], Served] = {}

    # --- reading ---------------------------------------------------------------------------------

    def lookup(self, requests: Sequence[Request]) -> list[Answer | None]:
        """The stored answer of each request, in their order; null for a miss.

        Subjects of stored answers that the store does not know yet are added, without a call.
        """
        found: list[Answer | None] = [None] * len(requests)
        by_descriptor: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            by_descriptor.setdefault(request.descriptor.hash, []).append(position)
        with self._reading:
            for positions in by_descriptor.values():
                self._lookup_one([requests[p] for p in positions], positions, found)
        return found

    def _lookup_one(self, requests: list[Request], positions: list[int], found: list[Answer | None]) -> None:
        wanted = requests[0].descriptor
        at = dict(enumerate(positions))  # of the requests that are still misses
        for source in self._sources(wanted):
            stored = self._rows(source, {requests[n].input_hash for n in at})
            hits: dict[int, Answer] = {}
            for n in at:
                answer = stored.get((requests[n].input_hash, requests[n].sample))
                if answer is not None and not unfit(answer, requests[n].refuse):
                    hits[n] = answer
            if hits:
                self._serve(source, wanted, [requests[n] for n in hits], list(hits.values()))
                for n, answer in hits.items():
                    if source.descriptor is not wanted:
                        answer = answer._replace(top_logprobs=cut(answer.top_logprobs, wanted))
                    found[at.pop(n)] = answer
                if not at:
                    return

    def _sources(self, descriptor: Descriptor) -> Iterator[_Source]:
        """Where to look, the nearest first; what is far is looked for once, and only for misses."""
        yield _Source(self.root, descriptor)
        further = self._siblings.get(descriptor.hash)
        if further is None:
            further = [_Source(self.root, other) for other in siblings(self.root, self.role, descriptor)]
            for root in self._also:
                further.append(_Source(root, descriptor))
                further += [_Source(root, other) for other in siblings(root, self.role, descriptor)]
            self._siblings[descriptor.hash] = further
        yield from further

    def _serve(
        self, source: _Source, wanted: Descriptor, requests: list[Request], answers: list[Answer]
    ) -> None:
        """Note what is served: its subjects where it lies, or a copy where it lies elsewhere in our root."""
        place = (source.root, source.descriptor.hash)
        if place not in self.served:
            self.served[place] = Served(*source)
        self.served[place].note(answers)
        if self._read_only:
            return
        if source.root != self.root:
            self.unwritten_subjects += len(requests)
        elif source.descriptor is not wanted:
            self._copy(wanted, requests, answers)
        elif unknown := self._unknown(wanted, requests):
            if is_network(self.root):  # a row of the view is within one file
                pairs = [pair for pair in zip(requests, answers, strict=True) if pair[0] in unknown]
                self._copy(wanted, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
            elif self._may_write(wanted):
                rows = [self._subject_row(request) for request in unknown]
                self._writer.put(Write(wanted, None, rows, (), None))
            else:
                self.unwritten_subjects += len(unknown)

    def _copy(self, wanted: Descriptor, requests: list[Request], answers: list[Answer]) -> None:
        """Keep rows that lie elsewhere in our root as the asker would have got them, at no cost."""
        if not self._may_write(wanted):
            self.unwritten_subjects += len(requests)
            return
        for request, answer in zip(requests, answers, strict=True):
            facts = answer._asdict() | {
                "input_hash": request.input_hash,
                "sample": request.sample,
                "input_text": request.input_text,
                "top_logprobs": cut(answer.top_logprobs, wanted),
                "origin": REUSED,
                "cost_usd": None,
                "created_by": CREATED_BY,
                "run_id": self.run_id,
            }
            row = tuple(facts.get(name) for name in schema.ANSWER_COLUMNS)
            self._writer.put(Write(wanted, row, [self._subject_row(request)], (), None))

    def _rows(self, source: _Source, hashes: Iterable[str]) -> dict[tuple[str, int], Answer]:
        rows: dict[tuple[str, int], Answer] = {}
        sql = _LOOKUP
        if self._fresh_since is not None and source.descriptor.provider != "shipped":
            sql += f" AND created_at >= '{self._fresh_since}'"
        ordered = sorted(hashes)
        for db in self._files(source):
            for query, chunk in schema.in_chunks(sql, ordered):
                for row in db.execute(query, chunk):
                    rows[row[0], row[1]] = Answer._make((*row[2:], True))
        return rows

    def _unknown(self, descriptor: Descriptor, hits: list[Request]) -> list[Request]:
        """Those whose subjects are not noted yet, each once."""
        keys = {request.subject_key: request for request in hits}
        for db in self._files(_Source(self.root, descriptor)):
            for sql, chunk in schema.in_chunks(_KNOWN, sorted(keys)):
                for (key,) in db.execute(sql, chunk):
                    keys.pop(key, None)
        return list(keys.values())

    def _may_write(self, descriptor: Descriptor) -> bool:
        place = layout.folder(self.root, self.role, descriptor)
        while not place.exists():
            place = place.parent
        return os.access(place, os.W_OK)

    def _files(self, source: _Source) -> Iterator[sqlite3.Connection]:
        """A reader of each file of a descriptor: one, or on a network file system one a writer."""
        for path in layout.files(source.root, self.role, source.descriptor):
            db = self._readers.get(path)
            if db is None:
                db = schema.open_reader(path)
                if db is None:
                    continue
                self._readers[path] = db
            yield db

    def why_missed(self, request: Request) -> Reason:
        """What comes nearest to a request that is not stored."""
        return why_missed([self.root, *self._also], self.role, request)

    def claim(self, requests: Sequence[Request]) -> dict[Key, Answer | None]:
        """Claim misses, so that no other process buys them too.

        Returns what stands in the way of asking: the answer where one came since the lookup, null
        where another process is asking. All other keys are ours until their answer or failure is
        committed, or the root is closed.
        """
        if self._temporary is not None:
            return {}
        in_the_way: dict[Key, Answer | None] = {}
        by_descriptor: dict[str, list[Request]] = {}
        for request in requests:
            if request.descriptor.provider != "shipped":  # costs nothing
                by_descriptor.setdefault(request.descriptor.hash, []).append(request)
        for group in by_descriptor.values():
            keys = [(request.input_hash, request.sample) for request in group]
            stored, held = self._claims.take(group[0].descriptor, keys, self._fresh_since)
            come = [request for request, key in zip(group, keys, strict=True) if key in stored]
            for request, answer in zip(come, self.lookup(come) if come else [], strict=True):
                if answer is not None:
                    in_the_way[request.key] = answer
            in_the_way |= {request.key: None for request, key in zip(group, keys, strict=True) if key in held}
        return in_the_way

    # --- writing ---------------------------------------------------------------------------------

    def put(
        self, response: Response, requests: Sequence[Request], done: Callable[[Answer | None], None]
    ) -> None:
        """Store an answer for all requests that share its key.

        `done` is called after the commit, from the writer's thread, with what the store now holds
        (another process may have been faster), or with null where the commit failed.
        """
        request, usage = response.request, response.usage
        row = bound(
            request.input_hash,
            request.sample,
            request.input_text,
            response.output,
            response.reasoning,
            response.finish_reason,
            response.top_logprobs,
            response.origin,
            response.served_model,
            response.fingerprint,
            response.backend_version,
            usage.input,
            usage.cached,
            usage.output,
            usage.reasoning,
            response.cost_usd,
            response.latency_s,
            now(),
            CREATED_BY,
            self.run_id,
        )

        def committed(stored: tuple[Any, ...] | None) -> None:
            done(None if stored is None else Answer._make((*(stored[i] for i in _AT), stored is not row)))

        def stale(stored: tuple[Any, ...], refresh_at: str | None) -> bool:
            old = Answer._make((*(stored[i] for i in _AT), True))
            aged = self._fresh_since is not None and old.created_at < self._fresh_since
            return refresh_at is not None or aged or unfit(old, request.refuse)

        subjects = [bound(*self._subject_row(asked)) for asked in requests]
        self._writer.put(Write(request.descriptor, row, subjects, (), committed, row[:2], stale))

    def note(self, event: Attempt | Failure) -> None:
        """Keep a failed try: its reason, raw text and cost."""
        request = event.request
        failed = event if isinstance(event, Failure) else None
        row = bound(
            request.input_hash,
            request.sample,
            *request.subject,
            None if failed else getattr(event, "number", None),
            event.reason,
            event.detail,
            event.output,
            failed.finish_reason if failed else None,
            failed.usage.input if failed else None,
            failed.usage.output if failed else None,
            event.cost_usd,
            now(),
            self.run_id,
        )
        self._writer.put(Write(request.descriptor, None, (), [row], None, row[:2] if failed else None))

    @property
    def error(self) -> StoreError | None:
        """Why answers could not be kept; null while all is well."""
        return self._writer.error

    def flush(self) -> None:
        """Return when everything handed over is on disk; raises `StoreError` if it cannot be."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and free everything; a throw-away root is removed."""
        try:
            self._writer.close()
        finally:
            self._claims.close()
            with self._reading:
                for db in self._readers.values():
                    db.close()
                self._readers.clear()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _subject_row(self, request: Request) -> tuple[Any, ...]:
        return (request.subject_key, request.input_hash, request.sample, *request.subject, self.run_id)
