from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from judgebench.benchmark import Instruction, Table
from judgebench.errors import ConfigError, DataError
from judgebench.protocol import Official, Protocol, values
from judgebench.reader import LastLabel, Score
from judgebench.request import digest

CONF = Path(__file__).resolve().parents[1] / "conf" / "protocol"
LABELS = LastLabel({"A": 0.0, "B": 1.0})
PAIR = [{"role": "user", "content": "{{ instruction }}: {{ answer_a }} or {{ answer_b }}?"}]


def conf(name: str) -> Protocol:
    built = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")
    assert isinstance(built, Protocol)
    return built


def pairwise(**settings: Any) -> Protocol:
    return Protocol("p", "pairwise", LABELS, chat=PAIR, **settings)


def item(identity: str, text: str = "q", **facts: Any) -> Instruction:
    return Instruction(identity, (text,), **facts)


def alpaca_eval(data_dir: Path) -> Protocol:
    official = conf("alpaca_eval_2").official
    assert official is not None
    table = Table(
        str(data_dir / "alpaca_eval" / "evaluator_prompts.parquet"),
        where={"evaluator": "weighted_alpaca_eval_gpt4_turbo"},
    )
    replaced = Official(table, "prompt_template", official.sha256, official.fields, official.markup)
    return Protocol("alpaca_eval_2", "pairwise", LABELS, official=replaced, orders="alpaca_eval")


# --- orders ------------------------------------------------------------------------------------------


def test_the_order_of_alpaca_eval_is_the_recorded_one(data_dir: Path) -> None:
    rows = pq.read_table(data_dir / "alpaca_eval" / "instructions.parquet").to_pylist()
    shown = {
        row["instruction_id"]: row["is_swapped"]
        for row in pq.read_table(
            data_dir / "alpaca_eval" / "judge_replays.parquet", columns=["instruction_id", "is_swapped"]
        ).to_pylist()
    }
    protocol = pairwise(orders="alpaca_eval")
    ours = {
        row["instruction_id"]: protocol.orientations(item(str(row["instruction_id"]), row["instruction"]), 7)
        for row in rows
    }
    assert ours == {key: ("reversed",) if swapped else ("direct",) for key, swapped in shown.items()}
    assert Counter(ours.values()) == {("reversed",): 406, ("direct",): 399}


def test_seeded_orders_hang_on_seed_and_item_alone() -> None:
    protocol = pairwise(orders="seeded")
    drawn = {str(n): protocol.orientations(item(str(n)), 0) for n in range(1000)}
    assert 440 < sum(order == ("direct",) for order in drawn.values()) < 560
    assert {
        str(n): protocol.orientations(item(str(n), "other text"), 0) for n in reversed(range(1000))
    } == drawn
    other = {str(n): protocol.orientations(item(str(n)), 1) for n in range(1000)}
    assert 400 < sum(drawn[key] != other[key] for key in drawn) < 600
    assert [drawn[str(n)][0][0] for n in range(12)] == list(
        "rddrdddrdrdd"
    )  # pinned: judgements are bought by it


def test_both_direct_and_pointwise() -> None:
    assert pairwise().orientations(item("1"), 0) == ("direct", "reversed")
    assert pairwise(orders="direct").orientations(item("1"), 0) == ("direct",)
    rated = Protocol("s", "pointwise", Score(1, 10), chat=[{"role": "user", "content": "{{ answer_a }}"}])
    assert rated.orientations(item("1"), 0) == (None,)


# --- templates ---------------------------------------------------------------------------------------


def test_the_prompt_of_alpaca_eval_byte_for_byte(data_dir: Path) -> None:
    official = next(
        row["prompt_template"]
        for row in pq.read_table(data_dir / "alpaca_eval" / "evaluator_prompts.parquet").to_pylist()
        if row["evaluator"] == "weighted_alpaca_eval_gpt4_turbo"
    )
    instructions = pq.read_table(data_dir / "alpaca_eval" / "instructions.parquet").to_pylist()
    template = alpaca_eval(data_dir).template("chat", None)
    for row in instructions[::80][:10]:
        first, second = f" answer {{x}} to {row['instruction_id']}\n", "another\r\n\u2028"
        fields = {"instruction": row["instruction"], "output_1": first, "output_2": second}
        # The official way: put in one field after the other, then part by the ChatML marks.
        text = official
        for name, value in fields.items():
            text = text.replace("{" + name + "}", value)
        messages = [
            {"role": part.split("\n", 1)[0], "content": part.split("\n", 1)[1].split("<|im_end|>")[0].strip()}
            for part in text.split("<|im_start|>")[1:]
        ]
        ours = template.render(values(item("i", row["instruction"]), [first], [second]))
        assert json.loads(ours) == {"messages": messages}
    assert [role for role, _ in template.messages] == ["system", "user"]


def test_another_text_than_the_official_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("{instruction} {output_1} {output_2}\n", encoding="utf-8")
    table = Table(str(tmp_path / "prompt.txt"), format="text")
    fields = {"output_1": "answer_a", "output_2": "answer_b", "instruction": "instruction"}
    sha256 = digest("{instruction} {output_1} {output_2}")  # white space around it does not count
    fine = Protocol("o", "pairwise", LABELS, official=Official(table, "text", sha256, fields))
    assert fine.template("chat", None).uses == {"instruction", "answer_a", "answer_b"}
    with pytest.raises(ConfigError, match="for chat judges, not text"):
        fine.template("text", None)
    with pytest.raises(DataError, match=f"has the hash {sha256}, and 0000 is expected"):
        Official(table, "text", "0000", fields).template(None)
    with pytest.raises(DataError, match="one row with a column 'prompt'"):
        Official(table, "prompt", sha256, fields).template(None)


@pytest.mark.parametrize("name", ["pairwise", "pairwise_logprob", "pointwise"])
@pytest.mark.parametrize("form", ["chat", "text"])
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("reference", [None, ("the truth {{ x }}",)])
def test_our_templates_show_everything_once(name: str, form: str, turns: int, reference: Any) -> None:
    protocol = conf(name)
    template = protocol.template(form, None)
    asked = Instruction(
        "i", tuple(f"<question {n}>" for n in range(turns)), reference=reference, system="<system>"
    )
    mine, theirs = ([f"<{who} {n}>" for n in range(turns)] for who in ("mine", "theirs"))
    text = template.render(values(asked, mine, theirs if protocol.mode == "pairwise" else None))
    prompt = json.loads(text).get("prompt") or "".join(m["content"] for m in json.loads(text)["messages"])
    shown = [*asked.turns, *mine, *(theirs if protocol.mode == "pairwise" else [])]
    for piece in [*shown, *(reference or ()), "<system>"]:
        assert prompt.count(piece) == 1, piece
    if protocol.mode == "pairwise":
        assert all(prompt.index(a) < prompt.index(b) for a in mine for b in theirs)
    assert "None" not in re.sub(r"<.*?>", "", prompt)
    # What is not there leaves no heading behind.
    bare = values(Instruction("i", asked.turns), mine, theirs if protocol.mode == "pairwise" else None)
    assert "known to be right" not in template.render(bare)
    assert "Instructions that" not in template.render(bare)


def test_references_of_some_turns() -> None:
    two = Instruction("i", ("a", "b"), reference=(None, "second"))
    assert values(two, ["x", "y"], None)["reference"] == "second"
    both = Instruction("i", ("a", "b"), reference=("first", "second"))
    assert values(both, ["x", "y"], None)["reference"] == "(turn 1) first\n\n(turn 2) second"


def test_settings_by_form() -> None:
    protocol = pairwise(
        settings={"max_tokens": 5, "stop": None}, chat_settings={"x": 1}, text_settings={"max_tokens": 9}
    )
    assert protocol.settings_for("chat") == {"max_tokens": 5, "stop": None, "x": 1}
    assert protocol.settings_for("text") == {"max_tokens": 9, "stop": None}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"orders": "bth"}, "Did you mean 'both'"),
        ({"identical": "tie"}, "'tie' is not known. Choices: draw, judge"),
    ],
)
def test_settings_that_are_not_known(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairwise(**settings)
    with pytest.raises(ConfigError, match=r"protocol\.mode: 'listwise'"):
        Protocol("p", "listwise", LABELS, chat=PAIR)  # type: ignore[arg-type]


def test_a_judge_of_a_form_that_the_protocol_has_no_rendering_for() -> None:
    with pytest.raises(ConfigError, match="'p' has no text rendering"):
        pairwise().template("text", None)
    with pytest.raises(ConfigError, match="'p' shows none of answer_b, conversation_b"):
        Protocol("p", "pairwise", LABELS, text="{{ answer_a }}").template("text", None)
