from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from judgebench import convert
from judgebench.answers import Answers
from judgebench.benchmark import Loaded, Table, files
from judgebench.cli import main
from judgebench.engine import Failure, Response
from judgebench.errors import DataError
from judgebench.judgements import Judgements, Match
from judgebench.model import Model
from judgebench.protocol import Protocol
from judgebench.reader import LabelLogprobs, LastLabel
from judgebench.recordings import Recordings
from judgebench.request import Request
from judgebench.stage import Outcome
from judgebench.store import Answer
from tests.fakes import collect

PAIR = [{"role": "user", "content": "{{ instruction }}|{{ answer_a }}|{{ answer_b }}"}]
ITEMS = [
    {"instruction_id": "x", "instruction": "qx", "base": "b", "m": "1", "n": "1"},
    {"instruction_id": "y", "instruction": "qy ", "base": "b", "m": "2", "n": "3"},
]


def written(path: Path, rows: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


class Planned:
    """Judgements of shipped answers, and what a recording answers to them."""

    def __init__(
        self, tmp_path: Path, models: str = "m", protocol: Protocol | None = None, label: str | None = None
    ) -> None:
        path = written(tmp_path / "items.json", ITEMS)
        self.loaded: Loaded = files(path, outputs=["base", "m", "n"]).load(None)
        sides = {name: self._side(name, label if name == "m" else None) for name in ("base", *models)}
        self.names = {side.label: str(side.model.name) for side in sides.values()}
        protocol = protocol or Protocol("p", "pairwise", LastLabel({"A": 0.0, "B": 1.0}), chat=PAIR)
        baseline = sides["base"] if protocol.mode == "pairwise" else None
        matches = [Match(sides[name], baseline) for name in models]
        self.judgements = Judgements(protocol, {"j": Model("openai", "judge")}, matches, 0, None)

    def _side(self, name: str, label: str | None) -> Answers:
        side = Answers(Model("shipped", name, label=label), self.loaded, "candidate")
        texts = {item["instruction_id"]: item[name] for item in ITEMS}
        side.take(
            [
                Outcome(
                    r,
                    Answer(
                        texts[r.subject.instruction_id],
                        None,
                        None,
                        None,
                        "shipped",
                        None,
                        None,
                        None,
                        None,
                        "",
                        hit=True,
                    ),
                )
                for r in side.requests(1)
            ]
        )
        return side

    def replies(self, recordings: Recordings) -> dict[tuple[str, str | None], str]:
        """Output or reason of each request, by instruction and order; of the last match."""
        engine = recordings.bound(self.judgements.again, self.loaded, self.names)
        found = {}
        for event in collect(engine, self._unique()):
            assert isinstance(event, (Response, Failure))
            subject = event.request.subject
            said = event.output if isinstance(event, Response) else event.reason
            found[subject.instruction_id, subject.orientation] = said or ""
        return found

    def _unique(self) -> list[Request]:
        return list({request.key: request for request in self.judgements.requests()}.values())


def recorded(tmp_path: Path, rows: list[Mapping[str, Any]], **settings: Any) -> Recordings:
    path = written(tmp_path / "recorded.json", rows)
    return Recordings(Table(path, columns=settings.pop("columns", {})), **settings)


def rows(**facts: Any) -> list[Mapping[str, Any]]:
    return [
        {"candidate": "m", "instruction_id": item, "orientation": order, "reply": f"{item} {order}", **facts}
        for item in ("x", "y")
        for order in ("direct", "reversed")
    ]


def test_replies_are_joined_by_subject_then_by_rendered_prompt(tmp_path: Path) -> None:
    assert Planned(tmp_path).replies(recorded(tmp_path, rows()[::-1][1:])) == {
        ("x", "direct"): "x direct",
        ("x", "reversed"): "x reversed",
        ("y", "direct"): "y direct",
        ("y", "reversed"): "not_recorded",
    }


def test_words_and_columns_of_the_file(tmp_path: Path) -> None:
    own = [
        {
            "who": row["candidate"],
            "id": row["instruction_id"],
            "flip": row["orientation"] == "reversed",
            "text": "t",
        }
        for row in rows()
    ]
    columns = {"candidate": "who", "instruction_id": "id", "orientation": "flip", "reply": "text"}
    recordings = recorded(
        tmp_path, own, columns=columns, orientations={"False": "direct", "True": "reversed"}
    )
    assert set(Planned(tmp_path).replies(recordings).values()) == {"t"}
    with pytest.raises(
        DataError, match="row 0: the order False is not declared; it must be one of direct, reversed"
    ):
        Planned(tmp_path).replies(recorded(tmp_path, own, columns=columns))


def test_recordings_know_names_and_tables_show_labels(tmp_path: Path) -> None:
    assert Planned(tmp_path, label="Nice").replies(recorded(tmp_path, rows()))["x", "direct"] == "x direct"


def test_a_missing_order_is_refused_and_not_guessed(tmp_path: Path) -> None:
    """FAULTS B116."""
    with pytest.raises(DataError, match="recording of m, 'x', direct does not say in which order"):
        Planned(tmp_path).replies(recorded(tmp_path, rows(orientation=None)[:1]))


def test_pointwise_ones_need_no_order(tmp_path: Path) -> None:
    protocol = Protocol(
        "s",
        "pointwise",
        LastLabel({"A": 0.0, "B": 1.0}),
        text=None,
        chat=[{"role": "user", "content": "{{ answer_a }}"}],
    )
    own = [{"candidate": "m", "instruction_id": item, "reply": item} for item in "xy"]
    assert Planned(tmp_path, protocol=protocol).replies(recorded(tmp_path, own)) == {
        ("x", None): "x",
        ("y", None): "y",
    }


def test_two_recordings_of_one_subject(tmp_path: Path) -> None:
    twice = [*rows(), {**rows()[0], "reply": "another"}]
    with pytest.raises(DataError, match=r"1 recordings differ .*m, 'x', direct in row 4.*on_conflict=first"):
        Planned(tmp_path).replies(recorded(tmp_path, twice))
    assert (
        Planned(tmp_path).replies(recorded(tmp_path, twice, on_conflict="first"))["x", "direct"] == "x direct"
    )
    assert Planned(tmp_path).replies(recorded(tmp_path, [*rows(), *rows()]))["x", "direct"] == "x direct"


def test_two_recordings_of_one_rendered_prompt(tmp_path: Path) -> None:
    """m and n gave the same answer to x: what the judge was asked is the same."""
    both = [*rows(), *rows(candidate="n", reply="from n")]
    with pytest.raises(DataError, match=r"2 recordings differ .*n, 'x', direct and m, 'x', direct"):
        Planned(tmp_path, models="mn").replies(recorded(tmp_path, both))
    first = Planned(tmp_path, models="mn").replies(recorded(tmp_path, both, on_conflict="first"))
    assert first["x", "direct"] == "x direct"
    assert first["y", "direct"] == "from n"


def test_columns_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no column for candidate, reply\. Columns: instruction_id, text\..*engine\.table"
    ):
        Planned(tmp_path).replies(recorded(tmp_path, [{"instruction_id": "x", "text": "t"}]))
    assert set(Planned(tmp_path).replies(recorded(tmp_path, [])).values()) == {"not_recorded"}


def test_null_and_empty_replies(tmp_path: Path) -> None:
    replies = Planned(tmp_path).replies(
        recorded(tmp_path, [{**rows()[0], "reply": None}, {**rows()[1], "reply": ""}])
    )
    assert (replies["x", "direct"], replies["x", "reversed"]) == ("not_recorded", "empty")


def test_log_probabilities(tmp_path: Path) -> None:
    top = [{"token": "B", "logprob": -0.1}, {"token": "A", "logprob": -2.4}]
    shapes = {
        "x": {"top_logprobs": top, "token_logprob": -0.1, "reply": "B"},
        "y": {
            "top_logprobs": json.dumps([{"token": "B", "logprob": -0.1, "top_logprobs": top}]),
            "reply": "B",
        },
    }
    own = [{**row, **shapes[row["instruction_id"]]} for row in rows()]
    protocol = Protocol("p", "pairwise", LabelLogprobs({"A": 0.0, "B": 1.0}), chat=PAIR)
    plan = Planned(tmp_path, protocol=protocol)
    engine = recorded(tmp_path, own).bound(plan.judgements.again, plan.loaded, plan.names)
    events = [event for event in collect(engine, plan.judgements.requests()) if isinstance(event, Response)]
    assert len(events) == 4
    preferences = {protocol.reader.read_one(e.output, None, e.top_logprobs).preference for e in events}
    assert len(preferences) == 1
    assert preferences.pop() == pytest.approx(0.9088770, abs=1e-6)


def test_nothing_is_read_before_the_first_request(tmp_path: Path) -> None:
    plan = Planned(tmp_path)
    engine = Recordings(Table("nowhere.json")).bound(plan.judgements.again, plan.loaded, plan.names)
    assert collect(engine, []) == []


def test_public_annotations_are_recordings(tmp_path: Path) -> None:
    """One file a model, instructions by their exact text, the order by the official seeding."""

    def annotation(item: Mapping[str, str]) -> dict[str, Any]:
        place = {"token": "B", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": -0.1}]}
        return {
            "instruction": item["instruction"], "output_2": item["m"], "generator_2": "example",
            "preference_raw_completion": json.dumps({"text": "B", "logprobs": {"content": [place]}}),
        }  # fmt: skip

    written(tmp_path / "results" / "m" / "judge" / "annotations.json", [annotation(item) for item in ITEMS])
    url = str(tmp_path / "results" / "{model}" / "judge" / "annotations.json")
    recordings = Recordings(Table(url, format="alpaca_eval_annotations"))
    protocol = Protocol("p", "pairwise", LastLabel({"A": 0.0, "B": 1.0}), chat=PAIR, orders="alpaca_eval")
    replies = Planned(tmp_path, models="mn", protocol=protocol).replies(recordings)
    swapped = {
        i["instruction"]: random.Random(f"is_switched_outputs{i['instruction']}0").random() >= 0.5
        for i in ITEMS
    }
    # n has no file; its answer to x is m's, so that is answered too.
    assert {key for key, said in replies.items() if said == "B"} == {
        (item["instruction_id"], "reversed" if swapped[item["instruction"]] else "direct")
        for item in ITEMS[:1]
    }
    mine = Planned(tmp_path, protocol=protocol).replies(recordings)
    assert set(mine.values()) == {"B"}


# --- the converter -----------------------------------------------------------------------------------

MODELS = ["NullModel", "OpenHermes-2.5-Mistral-7B", "phi-2", "text_davinci_001"]
JUDGE = convert.JUDGE
BASELINE = "gpt4_1106_preview"


def checkout(data_dir: Path, root: Path) -> None:
    """A clone of the public repository as far as the converter reads it, made back from the extracts."""
    folder = data_dir / "alpaca_eval"
    texts = {r["instruction_id"]: r for r in pq.read_table(folder / "instructions.parquet").to_pylist()}
    chosen = [("model", "in", [*MODELS, "gpt4_0613", BASELINE])]
    outputs = pq.read_table(folder / "outputs.parquet", filters=chosen).to_pylist()
    said = {(row["model"], row["instruction_id"]): row["output"] for row in outputs}
    for number, model in enumerate([*MODELS, "gpt4_0613"]):
        mine = [
            {
                "instruction": texts[row["instruction_id"]]["instruction"], "output": row["output"],
                "generator": "example", "dataset": texts[row["instruction_id"]]["dataset"], "id": 7,
            }
            for row in outputs
            if row["model"] == model
        ]  # fmt: skip
        random.Random(number).shuffle(mine)
        written(root / "results" / model / "model_outputs.json", mine)
    replays = pq.read_table(folder / "judge_replays.parquet", filters=[("model", "in", MODELS)]).to_pylist()
    for number, model in enumerate(MODELS):
        newer = number % 2 == 1
        mine = [annotated(row, texts, said, newer) for row in replays if row["model"] == model]
        written(root / "results" / model / JUDGE / "annotations.json", mine)
    # Some public files keep the preferences only.
    bare = [{"instruction": texts[0]["instruction"], "preference": 1.5, "generator_2": "x"}]
    written(root / "results" / "gpt4_0613" / JUDGE / "annotations.json", bare)

    configs = root / "src" / "alpaca_eval" / "evaluators_configs"
    by_evaluator: dict[str, dict[str, Any]] = {}
    for row in pq.read_table(folder / "evaluator_prompts.parquet").to_pylist():
        by_evaluator.setdefault(row["evaluator"], {})[row["entry"]] = json.loads(row["config_json"])
        prompt = configs / row["prompt_path"]
        prompt.parent.mkdir(parents=True, exist_ok=True)
        prompt.write_bytes(row["prompt_template"].encode())
    for evaluator, entries in by_evaluator.items():
        written(configs / evaluator / "configs.yaml", entries)  # JSON is YAML


def annotated(
    row: Mapping[str, Any],
    texts: Mapping[int, Mapping[str, Any]],
    said: Mapping[tuple[str, int], str],
    newer: bool,
) -> dict[str, Any]:
    raw = None
    if row["raw_text"] is not None:
        place = {
            "token": row["raw_text"], "bytes": [77], "logprob": row["sampled_logprob"],
            "top_logprobs": [{**entry, "bytes": [1]} for entry in row["top_logprobs"]],
        }  # fmt: skip
        raw = {
            "finish_reason": row["finish_reason"], "index": 0, "logprobs": {"content": [place]},
            "message": {"content": row["raw_text"], "role": "assistant"},
            "text": row["raw_text"], "total_tokens": float(row["total_tokens"]),
        }  # fmt: skip
    prefix = "preference_" if newer else ""
    return {
        "instruction": texts[row["instruction_id"]]["instruction"],
        "output_1": said[BASELINE, row["instruction_id"]],
        "output_2": said[row["model"], row["instruction_id"]],
        "generator_1": BASELINE, "generator_2": "example",
        "annotator": JUDGE, "preference": 0 if row["preference"] == 1.5 and not newer else row["preference"],
        f"{prefix}raw_completion": json.dumps(raw) if newer and raw else raw,
        f"{prefix}price_per_example": row["price_per_example"],
        f"{prefix}time_per_example": row["time_per_example"],
    }  # fmt: skip


def sorted_rows(path: Path, *keys: str, models: list[str] | None = None) -> list[dict[str, Any]]:
    read = pq.read_table(path).to_pylist()
    return sorted(
        (row for row in read if models is None or row["model"] in models),
        key=lambda row: tuple(row[key] for key in keys),
    )


def test_the_converter_gives_back_the_data(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, made = tmp_path / "alpaca_eval", tmp_path / "data"
    checkout(data_dir, clone)
    hub = Path("hub") / "tatsu-lab" / "alpaca_eval" / "alpaca_eval.json"
    (made / hub).parent.mkdir(parents=True)
    (made / hub).write_bytes((data_dir / hub).read_bytes())

    assert convert.main(["alpaca_eval", str(clone), str(made)]) == 0
    said = capsys.readouterr().out
    assert f"outputs.parquet: {805 * 5 - 2 - 2} rows of 5 models" in said
    assert f"without replies of {JUDGE}: gpt4_0613" in said

    ours, theirs = made / "alpaca_eval", data_dir / "alpaca_eval"
    for file, models in (("outputs.parquet", [*MODELS, "gpt4_0613"]), ("judge_replays.parquet", MODELS)):
        keys = ("model", "instruction_id")
        assert sorted_rows(ours / file, *keys) == sorted_rows(theirs / file, *keys, models=models)
    file, keys = "evaluator_prompts.parquet", ("evaluator", "entry")
    assert sorted_rows(ours / file, *keys) == sorted_rows(theirs / file, *keys)

    assert convert.main(["alpaca_eval", str(clone), str(made), "--models", "phi-2"]) == 0
    assert {row["model"] for row in sorted_rows(ours / "judge_replays.parquet", "model")} == {"phi-2"}


def test_the_public_files_are_read_as_they_are(data_dir: Path, tmp_path: Path) -> None:
    """docs/data.md: no conversion, a checkout alone."""
    clone, mirror = tmp_path / "alpaca_eval", tmp_path / "data"
    checkout(data_dir, clone)
    hub = data_dir / "hub" / "tatsu-lab" / "alpaca_eval"
    baseline = clone / "results" / "gpt4_1106_preview" / "model_outputs.json"
    baseline.parent.mkdir()
    baseline.write_bytes((hub / "alpaca_eval_gpt4_baseline.json").read_bytes())
    (mirror / "git" / "tatsu-lab").mkdir(parents=True)
    (mirror / "git" / "tatsu-lab" / "alpaca_eval").symlink_to(clone)
    results = f"{clone}/results/{{model}}"
    words = [
        "run", "benchmark=files", f"benchmark.path={hub}/alpaca_eval.json", "benchmark.name=alpaca_eval",
        f"benchmark.answers='{results}/model_outputs.json'", "benchmark.baseline=gpt4_1106_preview",
        "candidate.name=phi-2", "judge=gpt-4-1106-preview", "protocol=alpaca_eval_2",
        "engine=replay", f"engine.table.url='{results}/{JUDGE}/annotations.json'",
        "engine.table.format=alpaca_eval_annotations", f"data_dir={mirror}",
        f"store.root={tmp_path / 'store'}", f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    assert main(words) == 0
    ours = pq.read_table(tmp_path / "out" / "leaderboard.parquet").to_pylist()
    official = pd.read_csv(data_dir / "alpaca_eval" / "official_leaderboard.csv", index_col=0).loc["phi-2"]
    assert [(row["model"], row["n_total"], row["avg_length"]) for row in ours] == [
        ("phi-2", official["n_total"], official["avg_length"])
    ]
    assert ours[0]["win_rate"] == pytest.approx(official["win_rate"], abs=1e-8)


def test_what_the_converter_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["alpaca_eval", str(tmp_path), str(tmp_path)]) == 1
    assert "no checkout of tatsu-lab/alpaca_eval" in capsys.readouterr().err
    clone, made = tmp_path / "clone", tmp_path / "data"
    written(made / "hub" / "tatsu-lab" / "alpaca_eval" / "alpaca_eval.json", [{"instruction": "q"}])
    written(clone / "results" / "m" / "model_outputs.json", [{"instruction": "other", "output": "x"}])
    assert convert.main(["alpaca_eval", str(clone), str(made)]) == 1
    assert "1 instructions are unknown; the first: 'other'" in capsys.readouterr().err
    assert convert.main(["alpaca_eval", str(clone), str(made), "--models", "n"]) == 1
    assert "holds no n/model_outputs.json" in capsys.readouterr().err
    written(clone / "results" / "m" / "model_outputs.json", [{"instruction": "q", "output": {"x": 1}}])
    assert convert.main(["alpaca_eval", str(clone), str(made)]) == 1
    assert "another layout" in capsys.readouterr().err
    assert not list(made.rglob("*.parquet"))
