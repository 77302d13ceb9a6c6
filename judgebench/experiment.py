"""An experiment: one job from its conf to its files.

    job -> requests (answers.py, judgements.py) -> fill (stage.py) -> verdicts -> battles -> tables

`Experiment` is what a root config says; `prepare` turns it into requests without asking anybody, so
that `plan` can count what `run` would ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from judgebench import canary, ranking
from judgebench.answers import Answers
from judgebench.benchmark import Benchmark, Loaded, Truth
from judgebench.budget import Budget, Limits
from judgebench.engine import REASONS, Engine
from judgebench.errors import ConfigError, EngineError
from judgebench.judgements import Judgements, Match
from judgebench.model import Model
from judgebench.protocol import Protocol
from judgebench.recordings import Recordings
from judgebench.request import Request, canonical, digest
from judgebench.settings import RoleStore, Seeds, Store
from judgebench.stage import Deliver, Mode, Outcome, check_mode, fill
from judgebench.store import RoleRoot, instants
from judgebench.store.layout import ROLES
from judgebench.store.root import Served, root_of
from judgebench.tally import Tally

FLOOD = 10  # conversations of a model, below which a share says nothing
# Failures that a model or its provider is to blame for, not the run's own settings.
BROKEN = frozenset(REASONS) - {
    "previous_turn_failed",
    "not_cached",
    "not_shipped",
    "not_recorded",
    "over_budget",
    "cancelled",
}


@dataclass
class Experiment:
    """A composed root config. Constructing it reads nothing; see `conf/run.yaml` for each setting."""

    benchmark: Benchmark
    candidate: Model
    baseline: Model
    protocol: Protocol
    judge: Model | None = None
    judges: Mapping[str, Model] | None = None
    engine: Engine | Recordings | None = None
    ranking: Mapping[str, Any] = field(default_factory=dict)
    max_failed: float = 0.5
    limit: int | None = None
    shard: str | None = None
    check_judge: bool = True
    explain: bool = False
    seed: Seeds = field(default_factory=Seeds)
    store: Store = field(default_factory=Store)
    budget: Limits | None = None
    data_dir: str | None = None
    output_dir: str | None = None
    experiment: Any = None

    @property
    def data(self) -> Path | None:
        """The data folder, if one is named."""
        return Path(self.data_dir).expanduser() if self.data_dir else None

    @property
    def store_root(self) -> Path:
        """Where answers are kept."""
        return root_of(self.store)

    def mode(self, role: str) -> Mode:
        """The store mode of a role: its own, else the common one."""
        of_role: dict[str, RoleStore | None] = {name: self.store.get(name) for name in ROLES}  # type: ignore[misc]
        own = (of_role[role] or {}).get("mode")
        return check_mode(str(own or self.store.get("mode") or "use"))

    @property
    def bootstrap_seed(self) -> int:
        """Of the resampling in the ranking."""
        seed = self.seed.get("bootstrap") or 0
        if seed < 0:
            raise ConfigError(f"seed.bootstrap={seed}: a whole number from 0 on is expected.")
        return seed

    @property
    def also(self) -> list[Path]:
        """Further store roots, which serve and are never written."""
        named = self.store.get("also") or []
        roots = [
            Path(str(name)).expanduser().absolute() for name in ([named] if isinstance(named, str) else named)
        ]
        for root in roots:
            if not any((root / role).is_dir() for role in ROLES):
                raise ConfigError(f"store.also={root}: there is no store (no {' or '.join(ROLES)} in it).")
        return roots

    def prepare(self) -> Prepared:
        """Read the benchmark and say who is compared with whom. Asks nobody.

        Raises:
            ConfigError, DataError: anything that would make the run impossible.
        """
        ranking.options(**self.ranking, seed=self.bootstrap_seed)  # before anybody is paid, not after
        loaded = self.benchmark.load(self.data, limit=self.limit, shard=self.shard)
        candidate = Answers(self.seeded(self.candidate), loaded, "candidate")
        baseline: Answers | None = None
        if self.protocol.mode == "pairwise":
            baseline = Answers(self.seeded(self._baseline(loaded)), loaded, "baseline")
            if baseline.label == candidate.label:
                if baseline.descriptor != candidate.descriptor:
                    raise ConfigError(
                        f"Candidate and baseline are both called {candidate.label!r} and are not the same "
                        "model: give one of them a label."
                    )
                baseline = candidate
        sides = {side.label: side for side in (baseline, candidate) if side is not None}
        matches = [Match(candidate, baseline)]
        truths = loaded.truths() if self.check_judge else []
        matches += [match for match in self._checks(loaded, truths, sides) if match != matches[0]]
        judges = {name: self.seeded(model) for name, model in self._judges().items()}
        order = self.seed.get("order") or 0
        judgements = Judgements(self.protocol, judges, matches, order, self.data)
        return Prepared(self, loaded, list(sides.values()), matches, judgements, truths)

    def _judges(self) -> Mapping[str, Model]:
        judges = self.judges or ({"judge": self.judge} if self.judge else {})
        if not judges:
            raise ConfigError("No judge: name one with judge=CONF.")
        return judges

    def _baseline(self, loaded: Loaded) -> Model:
        model = self.baseline
        if model.provider == "shipped" and model.name is None:
            native = loaded.benchmark.baseline
            if native is None:
                known = loaded.shipped_models()
                raise ConfigError(
                    f"{loaded.benchmark.name} has no baseline of its own: name one with baseline.name=… "
                    f"(it ships {', '.join(known[:10]) or 'none'}) or baseline=CONF."
                )
            model = replace(model, name=native)
        return model

    def seeded(self, model: Model) -> Model:
        """A model with the run's sampling seed among its settings, unless it has one of its own."""
        seed = self.seed.get("sampling")
        if seed is None or "seed" in model.sampling or model.provider == "shipped":
            return model
        return replace(model, sampling={**model.sampling, "seed": seed})

    def _checks(self, loaded: Loaded, truths: Sequence[Truth], sides: dict[str, Answers]) -> Iterator[Match]:
        """The pairs with a known better answer, judged beside the job to see what the judge is worth."""
        pairs = sorted({(truth.better, truth.worse) for truth in truths})
        for label in sorted({name for pair in pairs for name in pair}):
            if label not in sides:
                sides[label] = Answers(Model("shipped", label), loaded, "check")
            elif sides[label].shipped is None:
                return  # the name is taken by a live model: its answers are not the known ones
        if self.protocol.mode == "pairwise":
            yield from (Match(sides[better], sides[worse]) for better, worse in pairs)
        else:
            yield from (Match(sides[name], None) for name in sorted({n for pair in pairs for n in pair}))


@dataclass
class Prepared:
    """A job, ready to be asked, counted or written. `matches[0]` is the job's own."""

    experiment: Experiment
    loaded: Loaded
    sides: list[Answers]
    matches: list[Match]
    judgements: Judgements
    truths: list[Truth]
    _replay: Engine | None = field(default=None, init=False)

    @property
    def turns(self) -> range:
        """The turns to fill, one after the other."""
        return range(1, max(side.turns for side in self.sides) + 1)

    @property
    def names(self) -> dict[str, str]:
        """Descriptor hash -> the name that tables show."""
        names = {side.descriptor.hash: side.label for side in self.sides}
        return names | {seat.descriptor.hash: seat.name for seat in self.judgements.seats}

    @property
    def provenance(self) -> dict[str, str]:
        """What the tables are made from, by content: equal for equal runs, wherever and whenever."""
        protocol = self.experiment.protocol
        return {
            "benchmark": self.loaded.benchmark.name,
            "instructions": self.loaded.content_hash(),
            "whole": str(self.loaded.whole).lower(),
            "protocol": protocol.name,
            "reader": protocol.reader.version,
            "templates": ",".join(sorted({seat.template.hash for seat in self.judgements.seats})),
            "judges": ",".join(f"{seat.name}={seat.descriptor.hash}" for seat in self.judgements.seats),
            "models": ",".join(f"{side.label}={side.descriptor.hash}" for side in self.sides),
        }

    @property
    def identity(self) -> str:
        """What is asked, by content: a job that is stopped and started again has the same."""
        return digest(canonical({k: v for k, v in self.provenance.items() if k != "reader"}))

    def open(self, role: str, run_id: str, *, read_only: bool = False) -> RoleRoot:
        """The role root that this job uses."""
        experiment = self.experiment
        root, mode = experiment.store_root, experiment.mode(role)
        since = None
        if mode == "refresh":
            since = instants.since(root, role, self.identity, keep=not read_only)
        return RoleRoot(
            root,
            role,
            run_id,
            throw_away=mode == "off",
            read_only=read_only,
            also=() if mode == "refresh" else experiment.also,
            fresh_since=since,
        )

    def refuse_flood(self) -> None:
        """Stop before judging where most answers of a model are missing: its score would say nothing.

        Raises:
            EngineError: more than the share `max_failed` of at least `FLOOD` conversations failed.
        """
        for side in self.sides:
            reasons = Counter(talk.reason for talk in side.conversations if talk.reason in BROKEN)
            failed, asked = reasons.total(), len(side.conversations)
            if asked >= FLOOD and failed > self.experiment.max_failed * asked:
                why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
                raise EngineError(
                    f"{side.label}: {failed} of {asked} answers failed ({why}). Nothing was judged; what was "
                    "answered is stored, and the same command asks the failed ones again. max_failed=1 "
                    "judges what there is."
                )

    def completion_requests(self, turn: int) -> Iterator[Request]:
        """One turn's requests of all sides."""
        return chain.from_iterable(side.requests(turn) for side in self.sides)

    def take_completions(self, outcomes: Sequence[Outcome]) -> None:
        """Hand outcomes to the sides that asked."""
        by_label: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            by_label.setdefault(outcome.request.subject.model_a, []).append(outcome)
        for side in self.sides:
            side.take(by_label.get(side.label, []))

    def engine_of(self, request: Request) -> Engine:
        """The engine of a request. Called for misses only, so a run of hits needs no engine at all."""
        override = self.experiment.engine
        for side in self.sides:
            if side.descriptor == request.descriptor:
                if side.shipped is not None:
                    return side.shipped
                return self._live(side.model, override)
        seat = next(s for s in self.judgements.seats if s.descriptor == request.descriptor)
        return self._live(seat.model, override)

    def _live(self, model: Model, override: Engine | Recordings | None) -> Engine:
        if isinstance(override, Recordings):
            if self._replay is None:
                names = {side.label: side.model.name or side.label for side in self.sides}
                self._replay = override.bound(self.judgements.again, self.loaded, names)
            return self._replay
        return model.require_engine(override)


Watch: TypeAlias = Callable[[str, Tally], AbstractContextManager[None]]
"""Shows a stage's tally while it runs; see `judgebench.progress`."""


@dataclass
class Filled:
    """What the paid stages of a job came to."""

    run_id: str
    completions: Tally
    judgements: Tally
    unwritten_subjects: int = 0
    sources: dict[str, list[Served]] = field(default_factory=dict)  # by role: what served the hits


async def fill_all(prepared: Prepared, stop: asyncio.Event, watch: Watch, budget: Budget) -> Filled:
    """Both paid stages of a job: completions turn by turn, then judgements."""
    filled = Filled(secrets.token_hex(8), Tally(), Tally())
    with ExitStack() as stack:
        completions, judgements = (
            _Stage(prepared, role, filled.run_id, getattr(filled, role), stop, budget, stack)
            for role in ROLES
        )
        with watch("completions", filled.completions):
            for turn in prepared.turns:
                await completions.fill(prepared.completion_requests(turn), prepared.take_completions)
        prepared.refuse_flood()
        with watch("judgements", filled.judgements):
            await judgements.fill(prepared.judgements.requests(), prepared.judgements.take)
        for stage in (completions, judgements):
            filled.unwritten_subjects += stage.root.unwritten_subjects
            filled.sources[stage.root.role] = [*stage.root.served.values()]
            stage.refreshed()
    return filled


class _Stage:
    """One role of a job while it is filled."""

    def __init__(
        self,
        prepared: Prepared,
        role: str,
        run_id: str,
        tally: Tally,
        stop: asyncio.Event,
        budget: Budget,
        stack: ExitStack,
    ) -> None:
        self.prepared, self.tally, self.stop, self.budget = prepared, tally, stop, budget
        self.mode = prepared.experiment.mode(role)
        self.root = prepared.open(role, run_id)
        stack.callback(self.root.close)

    async def fill(self, requests: Iterator[Request], deliver: Deliver) -> None:
        """Fill requests."""
        await fill(
            requests,
            store=self.root,
            engine_of=self.prepared.engine_of,
            mode=self.mode,
            deliver=deliver,
            tally=self.tally,
            stop=self.stop,
            budget=self.budget,
            preflight=self._canary if self.prepared.experiment.store.get("canary", True) else None,
        )

    async def _canary(self, engine: Engine, request: Request) -> None:
        if self.mode != "off":
            await canary.check(engine, request, self.root, self.tally, self.budget)

    def refreshed(self) -> None:
        """A refresh that asked everything is over; one with failures goes on next time."""
        if self.mode == "refresh" and not self.tally.failures:
            instants.end(self.root.root, self.root.role, self.prepared.identity)
