"""`judgebench import`: replies that people already have become answers of the store (origin `imported`).

The job that is composed renders what a run of it would ask; a reply goes into the store only under the key
of the request that it is a reply to, through the same `fill`. Nobody is asked. Whatever cannot be joined
stays a recording (`engine=replay` reads it), and is counted with its reason.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from judgebench import loop
from judgebench.answers import Answers
from judgebench.benchmark import Benchmark, Table
from judgebench.benchmark.formats import Row
from judgebench.benchmark.source import Absent, Unreachable
from judgebench.benchmark.table import columns_of
from judgebench.engine import Engine, Event
from judgebench.engine.replay import Recorded, Replay
from judgebench.errors import ConfigError, DataError
from judgebench.experiment import Experiment, Prepared
from judgebench.folder import Job
from judgebench.imported import Imported, Why, summary
from judgebench.model import Model
from judgebench.protocol import Protocol
from judgebench.recorded_answers import Given, Place, read_answers
from judgebench.recordings import Recording, Recordings, asked_otherwise
from judgebench.request import Key, Request, clean
from judgebench.settings import Seeds, Store
from judgebench.stage import Outcome, fill
from judgebench.store import Answer, RoleRoot


@dataclass
class Import:
    """See `conf/import.yaml`. `result` after the call: the `Imported`."""

    source: Mapping[str, Any]
    baseline: Model
    benchmark: Benchmark | None = None
    candidate: Model | None = None
    protocol: Protocol | None = None
    judge: Model | None = None
    judges: Mapping[str, Model] | None = None
    on_conflict: str = "refuse"
    limit: int | None = None
    shard: str | None = None
    check_judge: bool = True
    seed: Seeds = field(default_factory=Seeds)
    store: Store = field(default_factory=Store)
    data_dir: str | None = None
    engine: Any = None  # of a run's words; an import asks nobody
    experiment: Any = None

    def __call__(self, job: Job) -> int:
        """Read, render, join, store, tell; 3 where rows were refused.

        Raises:
            ConfigError: the job is not whole: no benchmark, candidate, protocol or judge.
            DataError: a file that is neither completions nor judgements.
        """
        table = self._table()
        if self.benchmark is None or self.candidate is None:
            missing = "benchmark" if self.benchmark is None else "candidate"
            raise ConfigError(
                "Whose answers are these, and to what? Name the benchmark and the candidate as a run would: "
                f"{missing}=… is missing."
            )
        if self.on_conflict not in ("refuse", "first"):
            raise ConfigError(f"on_conflict={self.on_conflict!r} is not known. Choices: refuse, first.")
        data = Path(self.data_dir).expanduser() if self.data_dir else None
        rows, located = table.read(data, model=str(self.candidate.name))
        columns = columns_of(rows)
        if {"reply", "judge"} & {*columns}:
            role = "judgements"
            self.result = self._judgements(table)
        elif {"output", "outputs"} & {*columns}:
            role = "completions"
            self.result = self._completions(rows, located.path)
        else:
            raise DataError(
                f"{located.path} holds neither completions (a column output) nor judgements (reply): it has "
                f"{', '.join(map(str, columns)) or 'no rows'}. Map them with source.columns.NAME=COLUMN."
            )
        print(summary(self.result, self._experiment(self.protocol).store_root, role))
        return self.result.status

    # --- the two roles -----------------------------------------------------------------------------

    def _completions(self, rows: Sequence[Row], path: Path) -> Imported:
        experiment = self._experiment(None)
        model = experiment.seeded(experiment.candidate)
        loaded = experiment.benchmark.load(experiment.data, limit=self.limit, shard=self.shard)
        side = Answers(model, loaded, "candidate")
        if side.shipped is not None:
            raise ConfigError(
                f"{loaded.benchmark.name} ships answers of {model.name!r}, which a run would take instead of "
                "imported ones. To store yours under this name set candidate.shipped=false, in runs too."
            )
        found = Imported(side.descriptor)
        given = read_answers(rows, path, side, found.add, self.on_conflict)
        run_id = secrets.token_hex(8)

        async def work(stop: asyncio.Event) -> None:
            with closing(RoleRoot(experiment.store_root, "completions", run_id)) as root:
                for turn in range(1, side.turns + 1):
                    await self._turn(turn, side, given, root, found, stop)

        loop.wait(work)
        for left in given.values():
            found.add("other_sample", left)
        return found

    async def _turn(
        self,
        turn: int,
        side: Answers,
        given: dict[Place, Given],
        root: RoleRoot,
        found: Imported,
        stop: asyncio.Event,
    ) -> None:
        """Import one turn's answers; later turns are asked after what the store then holds."""
        replies: dict[Key, Recorded] = {}
        mine: dict[int, Given] = {}  # by tag
        requests: list[Request] = []
        others: list[Request] = []
        for request in list(side.requests(turn)):
            one = given.pop(Place(request.subject.instruction_id, turn, request.sample), None)
            wrong = None
            if one is not None:
                if one.earlier != tuple(map(clean, side.conversations[request.tag].outputs)):
                    wrong = "other_conversation"
                elif asked_otherwise(one.row, request):
                    wrong = "other_prompt"
                elif replies.setdefault(request.key, one.reply) != one.reply:
                    wrong = "conflict"  # two instructions of one text
            if one is None or wrong is not None:
                others.append(request)
            else:
                mine[request.tag] = one
                requests.append(request)
            if wrong is not None:
                found.add(wrong, one)
        asked = _Asked(Replay(lambda: replies, "imported"))

        def deliver(outcomes: Sequence[Outcome]) -> None:
            side.take(outcomes)
            for request, answer in outcomes:
                assert isinstance(answer, Answer)
                one = mine[request.tag]
                found.add(asked.became(request.key, one.output, answer), one)

        await fill(requests, store=root, engine_of=lambda _: asked, deliver=deliver, stop=stop)
        if turn < side.turns:
            await fill(others, store=root, engine_of=_nobody, mode="only", deliver=side.take, stop=stop)

    def _judgements(self, table: Table) -> Imported:
        if self.protocol is None or not (self.judge or self.judges):
            missing = "protocol" if self.protocol is None else "judge"
            raise ConfigError(
                "These are judgements: name the protocol and the judge that a run would take for the same "
                f"prompts ({missing}=… is missing). Without a protocol that renders the prompt they remain "
                "recordings, for engine=replay."
            )
        experiment = self._experiment(self.protocol)
        judges = list(self.judges.values()) if self.judges else [self.judge] if self.judge else []
        if len(judges) != 1:
            raise ConfigError("Judgements are imported for one judge at a time: judge=….")
        judge = experiment.seeded(judges[0])
        found = Imported(judge.descriptor(self.protocol.settings_for(judge.form)))
        recordings = Recordings(
            table,
            {str(word): order for word, order in (self.source.get("orientations") or {}).items()},
            setting="source",
            on_conflict="first",
        )
        try:
            self.protocol.template(judge.form, experiment.data)
        except (Absent, Unreachable) as error:
            loaded = experiment.benchmark.load(experiment.data)
            for recording in recordings.read(loaded, [str(experiment.candidate.name)]).recordings:
                found.add("no_template", recording)
            found.note = str(error)
            return found
        prepared = experiment.prepare()
        run_id = secrets.token_hex(8)

        async def work(stop: asyncio.Event) -> None:
            with closing(RoleRoot(experiment.store_root, "completions", run_id)) as root:
                await _fill_completions(prepared, root, stop)
            with closing(RoleRoot(experiment.store_root, "judgements", run_id)) as root:
                await self._fill_judgements(prepared, recordings, root, found, stop)

        loop.wait(work)
        return found

    async def _fill_judgements(
        self,
        prepared: Prepared,
        recordings: Recordings,
        root: RoleRoot,
        found: Imported,
        stop: asyncio.Event,
    ) -> None:
        names = {side.label: side.model.name or side.label for side in prepared.sides}
        judgements, loaded = prepared.judgements, prepared.loaded
        matched = await asyncio.to_thread(recordings.matched, judgements.again(), loaded, names)
        told: set[Recording] = set()

        def tell(reason: str, recording: Recording) -> None:
            if recording not in told:
                told.add(recording)
                found.add(reason, recording)

        for recording, (key, _) in matched.conflicts.items():
            if self.on_conflict == "first":
                tell("superseded", recording)
                continue
            for one in (*matched.used[key], recording):
                tell("conflict", one)
            matched.replies.pop(key, None)
        for key in [key for key, reply in matched.replies.items() if reply.output == ""]:
            del matched.replies[key]
            for one in matched.used[key]:
                tell("empty", one)
        asked = _Asked(Replay(lambda: matched.replies, "imported"))

        def deliver(outcomes: Sequence[Outcome]) -> None:
            for request, answer in outcomes:
                assert isinstance(answer, Answer)
                for one in matched.used[request.key]:
                    tell(asked.became(request.key, matched.replies[request.key].output, answer), one)

        wanted = (request for request in judgements.requests() if request.key in matched.replies)
        await fill(wanted, store=root, engine_of=lambda _: asked, deliver=deliver, stop=stop)
        why = Why(prepared, names)
        for one in matched.recordings:
            tell(why.of(one, matched.misfits.get(one)), one)

    # --- the job -------------------------------------------------------------------------------------

    def _table(self) -> Table:
        if not self.source.get("path"):
            raise ConfigError("Nothing to import: name a file with source.path=….")
        return Table(
            str(self.source["path"]),
            self.source.get("format"),
            self.source.get("columns") or {},
            self.source.get("where") or {},
        )

    def _experiment(self, protocol: Protocol | None) -> Experiment:
        assert self.benchmark is not None
        assert self.candidate is not None
        return Experiment(
            benchmark=self.benchmark,
            candidate=self.candidate,
            baseline=self.baseline,
            protocol=protocol,  # type: ignore[arg-type]  # completions are prepared without one
            judge=self.judge,
            judges=self.judges,
            limit=self.limit,
            shard=self.shard,
            check_judge=self.check_judge,
            seed=self.seed,
            store=self.store,
            data_dir=self.data_dir,
        )


async def _fill_completions(prepared: Prepared, root: RoleRoot, stop: asyncio.Event) -> None:
    """The answers that were judged: what a benchmark ships is stored as a run stores it, the rest must be."""
    for turn in prepared.turns:
        for shipped in (True, False):
            sides = [side for side in prepared.sides if (side.shipped is not None) == shipped]
            await fill(
                chain.from_iterable(side.requests(turn) for side in sides),
                store=root,
                engine_of=prepared.engine_of,
                mode="use" if shipped else "only",
                deliver=prepared.take_completions,
                stop=stop,
            )


# --- both --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Asked:
    """An engine, and the keys that it was asked for: those that the store did not hold."""

    engine: Engine
    keys: set[Key] = field(default_factory=set)

    async def run(self, requests: AsyncIterable[Request]) -> AsyncGenerator[Event, None]:
        """See `judgebench.engine.Engine`."""

        async def noted() -> AsyncIterator[Request]:
            async for request in requests:
                self.keys.add(request.key)
                yield request

        async with aclosing(self.engine.run(noted())) as events:
            async for event in events:
                yield event

    def became(self, key: Key, output: str, stored: Answer) -> str:
        """What became of a reply, now that the store has answered."""
        if stored.output != clean(output):
            return "differs"
        return "imported" if key in self.keys else "known"


def _nobody(request: Request) -> Engine:
    raise AssertionError("an import asks nobody")
