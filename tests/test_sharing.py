"""Sharing a store through a loopback hub with the real client: what travels, and what is refused."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hub import Hub, environment, served
from judging import answer, says
from servers import serving
from storing import M, ask, put

from judgebench.cli import main
from judgebench.errors import ConfigError, StoreError
from judgebench.request import Descriptor
from judgebench.sharing import Fetch, Push
from judgebench.store import RoleRoot, layout, packing, parcel
from judgebench.store.deletion import condition, delete

ROLE = "judgements"
ROOT = Path(__file__).resolve().parent.parent
REPO = "team/store"
TOKEN = "hf_" + "Secret1234" * 4


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("JUDGEBENCH_STORE", "JUDGEBENCH_DATA"):
        monkeypatch.delenv(name, raising=False)
    with served(Hub(token=TOKEN), monkeypatch, str(tmp_path / "cache")) as hub:
        yield hub


def fill(store, *answers, descriptor=M, role=ROLE, **facts):
    """Prompts and outputs; each prompt is its own instruction."""
    root = RoleRoot(Path(store), role, "r")
    for prompt, output in answers:
        put(root, ask(prompt, instruction=prompt[:20], descriptor=descriptor), output=output, **facts)
    root.close()
    return store


def push(store="store", **settings):
    verb = Push(REPO, store={"root": store}, **settings)
    assert verb(None) == 0
    return verb.result


def fetch(store, **settings):
    verb = Fetch(REPO, store={"root": store}, **settings)
    assert verb(None) == 0
    return verb.result


def rows(store, columns="input_text, output", role=ROLE, descriptor=M):
    with closing(sqlite3.connect(layout.database(Path(store), role, descriptor))) as db:
        return sorted(db.execute(f"SELECT {columns} FROM {role}").fetchall(), key=repr)


def tables(store, descriptor=M):
    with closing(sqlite3.connect(layout.database(Path(store), ROLE, descriptor))) as db:
        return {
            table: sorted(map(repr, db.execute(f"SELECT * FROM {table}")))
            for table in ("responses", "subjects", "tombstones")
        }


def kinds(paths):
    """How many files of each kind."""
    names = [Path(path).name.partition("-")[0].removesuffix(".json") for path in paths]
    return {name: names.count(name) for name in sorted(set(names))}


def forget(store, **where):
    delete(Path(store), ROLE, condition(ROLE, where), "subjects")


# --- there and back ----------------------------------------------------------------------------------


def test_what_is_pushed_and_fetched_is_the_same(hub, capsys):
    fill("store", ("1", "one"), ("2", "two"), cost_usd=0.25)
    fill("store", ("1", "uno"), descriptor=Descriptor("openai", "other/Model", {"top_p": 0.5}))
    sent = push()
    assert kinds(sent) == {"README.md": 1, "answers": 2, "metadata": 2, "subjects": 2}
    assert hub.repos[REPO].private
    merged = fetch("other")
    assert (merged.answers, merged.subjects, merged.known) == (3, 3, 0)
    assert tables("other") == tables("store")
    again = fetch("other")
    assert (again.answers, again.subjects, again.known, again.conflicts) == (0, 0, 3, [])
    told = capsys.readouterr()
    assert TOKEN not in told.out + told.err


def test_a_second_push_sends_nothing_and_new_rows_travel_alone(hub, capsys):
    fill("store", ("1", "one"))
    push()
    commits = len(hub.committed)
    assert push() == []
    assert len(hub.committed) == commits
    assert "nothing is sent" in capsys.readouterr().out
    before = hub.repos[REPO].files
    fill("store", ("2", "two"))
    assert kinds(push()) == {"README.md": 1, "answers": 1, "subjects": 1}
    after = hub.repos[REPO].files
    assert all(after[path] == content for path, content in before.items() if path != "README.md")
    assert fetch("other").answers == 2
    assert push("other") == []


def test_another_use_of_an_answer_travels_without_the_answer(hub):
    fill("store", ("1", "one"))
    push()
    root = RoleRoot(Path("store"), ROLE, "r")
    root.lookup([ask("1", instruction="1", model_a="twin")])
    root.close()
    assert kinds(push()) == {"README.md": 1, "subjects": 1}
    fetch("other")
    assert tables("other") == tables("store")


def test_of_known_answers_only_the_keys_are_read(hub):
    fill("store", *((str(n), "long " * 2000 + str(n)) for n in range(40)))
    push()
    (path,) = (path for path in hub.repos[REPO].files if "/answers-" in path)
    hub.asked.clear()
    fill("store", ("new", "new"))
    push()
    spans = [span for _, asked, span in hub.asked if asked.endswith(path)]
    assert spans
    assert all(spans), "never the whole file"


def test_the_same_rows_give_the_same_files_whoever_wrote_them(hub, tmp_path):
    fill("a", ("1", "one"), ("2", "two"))
    shutil.copytree("a", "b")
    push("a", dry_run=True)
    assert push("a", dry_run=True) == push("b", dry_run=True)
    assert REPO not in hub.repos, "a dry run makes nothing"


def test_files_are_named_by_their_content_and_typed(hub):
    fill("store", ("1", "one"))
    push()
    for path, content in hub.repos[REPO].files.items():
        if path.endswith(".parquet"):
            Path("f.parquet").write_bytes(content)
            assert parcel.name_of(Path("f.parquet")) in path
            assert pq.read_schema("f.parquet").equals(parcel.SCHEMAS[parcel.piece(path).kind])


def test_many_rows_are_many_files(hub, monkeypatch):
    monkeypatch.setattr(packing, "FILE_ROWS", 5)
    monkeypatch.setattr(packing, "GROUP_ROWS", 2)
    fill("store", *((str(n), f"answer {n}") for n in range(12)))
    assert kinds(push())["answers"] == 3
    fetch("other")
    assert tables("other") == tables("store")


def test_a_snapshot_is_of_one_instant_while_others_write(hub, monkeypatch):
    fill("store", ("1", "one"))
    real = packing.Shelf.answers

    def answers(shelf):
        fill("store", ("late", "late"))
        return real(shelf)

    with monkeypatch.context() as patch:
        patch.setattr(packing.Shelf, "answers", answers)
        push()
    frames = [
        content for path, content in hub.repos[REPO].files.items() if "answers" in path or "subjects" in path
    ]
    assert len(frames) == 2
    for content in frames:
        Path("f.parquet").write_bytes(content)
        assert pq.read_metadata("f.parquet").num_rows == 1


# --- what is chosen ----------------------------------------------------------------------------------


def test_columns_choose(hub):
    fill("store", ("1", "one"), ("2", "two"))
    fill("store", ("1", "uno"), role="completions")
    sent = push("store", where={"instruction_id": "2"})
    assert kinds(sent)["answers"] == 1
    push("store", role="completions")
    fetch("other")
    assert rows("other") == [(ask("2").input_text, "two")]
    assert rows("other", role="completions") == [(ask("1").input_text, "uno")]
    assert fetch("third", role="completions").answers == 1
    assert not (Path("third") / ROLE).exists()
    with pytest.raises(ConfigError, match="instruction_idd"):
        push("store", where={"instruction_idd": "2"})


def test_nothing_chosen_is_nothing_sent(hub, capsys):
    fill("store", ("1", "one"))
    assert push("store", where={"instruction_id": "9"}) == []
    assert "Nothing matches" in capsys.readouterr().out
    assert REPO not in hub.repos


def test_a_run_travels_and_gives_the_same_tables_without_a_call(hub):
    run = ["benchmark=starter", "limit=6", "protocol=pairwise", "candidate=server", "candidate.name=cand",
           "judge=server", "judge.name=jud"]  # fmt: skip
    with serving(plan=says(answer)) as server:
        urls = [f"{role}.base_url={server.url}" for role in ("candidate", "judge")]
        assert main(["run", *run, *urls, "store.root=store", "output_dir=mine"]) == 0
        # Others' rows in the same databases stay at home.
        assert main(["run", *run, *urls, "store.root=store", "output_dir=more", "limit=9"]) == 0
        push("store", run="mine")
        calls = server.count
    assert push("store", run="mine") == []
    fetch("other")
    assert main(["run", *run, *urls, "store.root=other", "store.mode=only", "output_dir=theirs"]) == 0
    assert server.count == calls
    files = sorted(path.name for path in Path("mine").glob("*.parquet"))
    assert "verdicts.parquet" in files
    for name in files:
        assert (Path("mine") / name).read_bytes() == (Path("theirs") / name).read_bytes(), name
    held = pd.concat(pd.read_parquet(f"mine/{name}.parquet") for name in ("verdicts", "check_verdicts"))
    for path in layout.databases(Path("other"), ROLE):
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM responses").fetchone()[0] == held["input_hash"].nunique()
            assert db.execute("SELECT count(*) FROM subjects").fetchone()[0] == len(held)


def test_a_run_of_another_store_is_refused(hub):
    run = ["benchmark=starter", "limit=2", "candidate=native", "candidate.name=starter-sound",
           "check_judge=false", "baseline.name=starter-flawed", "protocol=pairwise"]  # fmt: skip
    with serving(plan=says(answer)) as server:
        judge = ["judge=server", "judge.name=j", f"judge.base_url={server.url}"]
        assert main(["run", *run, *judge, "store.root=store", "output_dir=out"]) == 0
    with pytest.raises(StoreError, match=r"not in this store.*store\.root"):
        push("empty", run="out")
    assert REPO not in hub.repos


# --- deletions ---------------------------------------------------------------------------------------


def test_what_was_deleted_stays_deleted_everywhere(hub):
    fill("store", ("1", "one"), ("2", "two"))
    push()
    fetch("theirs")
    forget("store", instruction_id="1")
    assert kinds(push()) == {"README.md": 1, "tombstones": 1}
    fetch("new")
    assert rows("new") == [(ask("2").input_text, "two")]
    assert fetch("theirs").spared > 0, "what is theirs is theirs to delete"
    assert len(rows("theirs")) == 2
    assert fetch("theirs", deletions="apply").deleted > 0
    assert len(rows("theirs")) == 1
    assert fetch("store").buried > 0
    assert len(rows("store")) == 1
    assert push() == []


def test_a_push_does_not_bring_back_what_others_deleted(hub, capsys):
    fill("store", ("1", "one"), ("2", "two"))
    shutil.copytree("store", "stale")
    push()
    forget("store", instruction_id="1")
    push()
    assert push("stale") == []
    capsys.readouterr()
    fill("stale", ("3", "three"))
    push("stale")
    assert "were deleted there and stay away" in capsys.readouterr().out
    fetch("new")
    assert [output for _, output in rows("new")] == ["two", "three"]


def test_what_was_bought_anew_after_a_deletion_travels(hub):
    fill("store", ("1", "one"))
    push()
    forget("store", instruction_id="1")
    push()
    fill("store", ("1", "anew"))
    assert kinds(push())["answers"] == 1
    assert push() == []
    fetch("new")
    assert rows("new") == [(ask("1").input_text, "anew")]


# --- others at the same time -------------------------------------------------------------------------


def test_two_pushes_at_once_both_arrive(hub, capsys):
    fill("a", ("1", "one"), ("2", "two"))
    shutil.copytree("a", "b")
    fill("b", ("3", "three"))
    hub.repo(REPO)
    hub.before_commit = lambda number: push("b") if number == 0 else None
    sent = push("a")
    assert "pushed meanwhile" in capsys.readouterr().out
    assert sent == [], "the other one brought everything"
    fetch("new")
    assert [output for _, output in rows("new")] == ["one", "two", "three"]
    fill("a", ("4", "four"))
    fill("b", ("5", "five"))
    first = len(hub.committed)
    hub.before_commit = lambda number: push("b") if number == first else None
    assert kinds(push("a"))["answers"] == 1
    assert fetch("new").answers == 2


def test_a_repository_that_never_rests_is_given_up(hub):
    fill("store", ("1", "one"))
    hub.repo(REPO)
    hub.before_commit = lambda number: hub.repos[REPO].commit({"note.txt": str(number).encode()})
    with pytest.raises(StoreError, match=r"8 attempts.*Push again"):
        push()
    assert len(hub.committed) == 8


def test_conflicts_are_listed_and_ours_stays(hub, capsys):
    fill("a", ("1", "one"))
    push("a")
    fill("b", ("1", "ONE"))
    assert [(c.here, c.there, c.kept) for c in fetch("b").conflicts] == [("ONE", "one", "here")]
    assert "ours stays" in capsys.readouterr().out
    assert rows("b") == [(ask("1").input_text, "ONE")]
    fetch("b", on_conflict="older")
    assert rows("b") == [(ask("1").input_text, "one")]


# --- what is refused ---------------------------------------------------------------------------------

SECRETS = {
    "openai": "sk-proj-" + "a1B2" * 8,
    "hub": "hf_" + "Ab3dEf6hIj" * 4,
    "aws": "AKIA" + "ABCDEFGH12345678",
    "bearer": "curl -H 'Authorization: Bearer " + "abc123DEF" * 4 + "'",
    "github": "ghp_" + "a1b2c3d4e5" * 4,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMII",
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("where", ["input_text", "output"])
def test_a_row_with_a_secret_is_refused_by_its_key(hub, capsys, kind, where):
    secret = SECRETS[kind]
    pair = (f"Is {secret} fine?", "yes") if where == "input_text" else ("1", f"It is {secret}.")
    fill("store", pair, ("2", "two"))
    key = f"{M.hash}:{ask(pair[0]).input_hash}:0"
    assert main(["push", f"repo={REPO}", "store.root=store"]) == 1
    told = capsys.readouterr()
    assert f"{key} in {where}: looks like a key" in told.out
    assert key in told.err
    assert secret[-12:] not in told.out + told.err
    assert REPO not in hub.repos


def test_what_was_looked_at_can_be_sent(hub, capsys):
    fill("store", ("1", f"It is {SECRETS['aws']}."), ("2", "two"))
    key = f"{M.hash}:{ask('1').input_hash}:0"
    words = [f"repo={REPO}", "store.root=store", "where.benchmark=b", f"allow_secrets=[{key}]"]
    assert main(["push", *words]) == 0, capsys.readouterr().err
    assert main(["fetch", f"repo={REPO}", "store.root=other"]) == 0
    assert tables("other") == tables("store")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer YOUR_ACCESS_TOKEN_GOES_HERE",
        "a task-oriented-dialogue-system-with-many-words-v2",
        "export OPENAI_API_KEY=sk-...",
        "hf_hub_download(repo_id)",
        "/home/user/project in a prompt is the benchmark's",
    ],
)
def test_placeholders_are_no_secrets(hub, text):
    fill("store", (text, text))
    assert push()


@pytest.mark.parametrize(
    ("descriptor", "column"),
    [
        (Descriptor("vllm", "m", {}, weights="/data/models/m.gguf"), "descriptor.weights"),
        (Descriptor("vllm", "/home/ann/m", {}), "descriptor.model"),
        (Descriptor("vllm", "m", {"extra": {"x_api_key": "k"}}), "descriptor.settings.extra.x_api_key"),
        (Descriptor("vllm", "m", {"prefix": "Authorization: k"}), "descriptor.settings.prefix"),
        (Descriptor("vllm", "m", {"adapter": "C:\\Users\\ann\\a"}), "descriptor.settings.adapter"),
    ],
)
def test_a_descriptor_that_tells_too_much_is_refused(hub, capsys, descriptor, column):
    fill("store", ("1", "one"), descriptor=descriptor)
    with pytest.raises(ConfigError, match="allow_secrets"):
        push()
    assert f"{descriptor.hash} in {column}: " in capsys.readouterr().out
    assert push("store", allow_secrets=[descriptor.hash])


def test_a_secret_of_the_environment_is_known_by_value(hub, monkeypatch):
    monkeypatch.setenv("SOME_SERVICE_KEY", "quite ordinary words, in fact")
    fill("store", ("1", "He said: quite ordinary words, in fact"))
    with pytest.raises(ConfigError, match="secret variable"):
        push()


def test_a_benchmark_that_may_not_be_passed_on_is_refused(hub, tmp_path, monkeypatch):
    from judgebench import shipment

    confs = tmp_path / "conf" / "benchmark"
    confs.mkdir(parents=True)
    (confs / "b.yaml").write_text("# B\nname: b\nlicence: All rights reserved\nredistribute: false # so\n")
    monkeypatch.setattr(shipment, "conf_dir", lambda: tmp_path / "conf")
    fill("store", ("1", "one"))
    with pytest.raises(ConfigError, match=r"terms of b \(All rights reserved\).*accept_license=true"):
        push()
    assert push("store", accept_license=True)
    assert b"do not allow passing it on" in hub.repos[REPO].files["README.md"]


def pushed(hub):
    fill("store", ("1", "one"), ("2", "two"))
    push()
    return hub.repos[REPO]


def path_of(repo, kind):
    return next(path for path in repo.files if f"/{kind}" in path)


def replaced(repo, kind, change):
    """Put a file with changed rows in the place of one, honestly named."""
    old = path_of(repo, kind)
    Path("f.parquet").write_bytes(repo.files[old])
    table = change(pq.read_table("f.parquet"))
    pq.write_table(table, "f.parquet")
    new = f"{old.rpartition('-')[0]}-{parcel.name_of(Path('f.parquet'))}.parquet"
    repo.commit({old: None, new: Path("f.parquet").read_bytes()})


def set_first(column, value):
    def change(table):
        values = table[column].to_pylist()
        at = table.schema.get_field_index(column)
        field = table.schema.field(at)
        return table.set_column(at, field, [[value, *values[1:]]])

    return change


def test_a_forged_answer_is_refused_and_named(hub):
    repo = pushed(hub)
    replaced(repo, "answers", set_first("input_text", '{"prompt":"something else"}'))
    first = min(ask("1").input_hash, ask("2").input_hash)
    with pytest.raises(StoreError, match=f"{M.hash}:{first}:0"):
        fetch("other")
    assert len(rows("other")) == 1, "the honest row was taken"


def test_a_forged_use_is_refused_and_named(hub):
    repo = pushed(hub)
    replaced(repo, "subjects", set_first("model_a", "somebody else"))
    with pytest.raises(StoreError, match=r"1 rows .*subject"):
        fetch("other")
    assert {row[0] for row in rows("other", "model_a")} == {"x"}


def test_a_changed_file_is_refused_before_anything_is_taken(hub):
    repo = pushed(hub)
    path = path_of(repo, "subjects")
    repo.commit({path: repo.files[path] + b"x"})
    with pytest.raises(StoreError, match="does not have the hash in its name"):
        fetch("other")
    assert not Path("other").exists()


def test_newer_formats_are_refused(hub):
    repo = pushed(hub)
    replaced(
        repo, "answers", lambda table: table.replace_schema_metadata({"judgebench_schema": "store_answers/2"})
    )
    with pytest.raises(StoreError, match=r"store_answers/2.*Upgrade"):
        fetch("other")
    place = path_of(repo, "metadata").rpartition("/")[0]
    repo.commit({f"{place}/canaries-{'0' * 32}.parquet": b""})
    with pytest.raises(StoreError, match=r"'canaries'.*newer"):
        fetch("other")


def test_a_descriptor_in_a_wrong_folder_is_refused(hub):
    repo = pushed(hub)
    path = path_of(repo, "metadata")
    content = json.loads(repo.files[path])
    content["descriptor"]["settings"]["temperature"] = 2.0
    repo.commit({path: json.dumps(content).encode()})
    with pytest.raises(StoreError, match="does not belong into that folder"):
        fetch("other")
    content["descriptor"]["mood"] = "new"
    repo.commit({path: json.dumps(content).encode()})
    with pytest.raises(StoreError, match="upgrade"):
        fetch("other")
    assert not Path("other").exists()


# --- the hub -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "store", "a/b/c", "a b/c"])
def test_a_repository_needs_a_name(name):
    for verb in (Push, Fetch):
        with pytest.raises(ConfigError, match="repo=OWNER/NAME"):
            verb(name)(None)


def test_without_a_login_nothing_is_written_or_read(hub, monkeypatch, capsys):
    fill("store", ("1", "one"))
    push()
    fill("store", ("2", "two"))
    wrong = "hf_" + "Wrong12345" * 4
    monkeypatch.setenv("HF_TOKEN", wrong)
    for words in (["push", "store.root=store"], ["fetch", "store.root=other"]):
        assert main([*words, f"repo={REPO}"]) == 1
        told = capsys.readouterr()
        assert "HF_TOKEN" in told.err
        assert wrong not in told.out + told.err
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StoreError, match="login"):
        fetch("other")


def test_nothing_to_fetch(hub):
    hub.repo(REPO)
    with pytest.raises(StoreError, match="holds no answers"):
        fetch("other")
    hub.repos.clear()
    with pytest.raises(StoreError, match="holds no answers"):
        fetch("other")


def test_an_earlier_state_can_be_fetched(hub):
    repo = pushed(hub)
    earlier = repo.commits[-1][0]
    fill("store", ("3", "three"))
    push()
    assert fetch("then", revision=earlier).answers == 2
    assert fetch("now").answers == 3


def test_the_card_tells_what_is_there_and_ones_own_card_is_kept(hub):
    fill("store", ("1", "one"), ("2", "two"))
    push()
    repo = hub.repos[REPO]
    card = repo.files["README.md"].decode()
    front = card.split("---\n")[1]
    assert "config_name: judgements-answers" in front
    assert "path: judgements/*/*/*/subjects-*.parquet" in front
    assert f"| judgements | openai/m ({M.hash[:8]}) | `" in card
    assert "| 2 | 2 | b |" in card
    assert f"judgebench fetch repo={REPO}" in card
    fill("store", ("3", "three"))
    push()
    assert "| 3 | 3 | b |" in repo.files["README.md"].decode()
    repo.commit({"README.md": b"---\nlicense: mit\n---\nMine."})
    fill("store", ("4", "four"))
    assert "README.md" not in push()


def test_lfs_and_the_environment_in_a_process_of_its_own(hub, tmp_path):
    hub.lfs_from = 2000
    fill("store", *((str(n), f"answer {n}") for n in range(50)))
    done = subprocess.run(
        [sys.executable, "-m", "judgebench.cli", "push", f"repo={REPO}", "store.root=store"],
        env={**environment(hub, str(tmp_path / "home")), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert hub.objects, "large files went as LFS objects"
    fetch("other")
    assert tables("other") == tables("store")


def test_a_benchmark_is_read_from_the_hub(hub, monkeypatch, tmp_path):
    from judgebench.benchmark import Benchmark, Table

    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path / "files"))
    frame = pd.DataFrame({"instruction_id": ["a", "b"], "instruction": ["Hi?", "Ho?"], "out": ["1", "2"]})
    frame.to_parquet("q.parquet")
    sha = hub.repo("owner/set").commit({"data/q.parquet": Path("q.parquet").read_bytes()})
    url = f"hf://datasets/owner/set@{sha}/data/q.parquet"
    loaded = Benchmark("set", Table(url), outputs={"m": Table(url, columns={"output": "out"})}).load(None)
    assert [item.turns for item in loaded.instructions] == [("Hi?",), ("Ho?",)]
    assert loaded.sources[0].revision == sha
    count = len(hub.asked)
    assert loaded.shipped("m")
    assert len(hub.asked) == count, "a pinned file is fetched once"
