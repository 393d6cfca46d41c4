"""`benchmarks/prose.py`: it reads prose and no code, counts each pattern once, and fails above its limit."""

import sys

import pytest

from benchmarks import prose

PAGE = """# Answers

<!-- not run: nobody answers -->
```bash
echo "the answer stands beside it"   # anew
```

The server tells `answer` [nobody](answers.md). One more sentence; it is short.

| what | how |
|---|---|
| words | plain |
"""


def count_of(paragraphs) -> prose.Count:
    tally = prose.Count()
    for paragraph in paragraphs:
        tally.add("page", paragraph)
    return tally


def test_markdown_is_counted_without_code_comments_and_targets():
    tally = count_of(prose.markdown(PAGE))
    hits = sorted(hit.split("'")[1] for hit in tally.hits)
    assert hits == ["nobody", "tells", "words"]  # not the capitalised heading
    assert len(tally.semicolons) == 1


def test_python_is_counted_by_docstrings_comments_and_strings():
    source = '"""What it tells."""\n\nanswer = "no word"  # goes on\n'
    source += 'print(f"a figure of {answer} words")\nasked = "beside=1 x y"\n'
    tally = count_of(prose.python(source))
    assert sorted(hit.split("'")[1] for hit in tally.hits) == ['"""What', "figure", "goes on", "tells", "words"]


def test_adjacent_comments_of_yaml_are_one_paragraph():
    paragraphs = [" ".join(text.split()) for text in prose.comments("a: 1  # of nodes\nb: 2\n# one\n# two\nc: 'x#y'\n")]
    assert paragraphs == ["of nodes", "one two"]


def test_a_sentence_is_long_above_25_words():
    short, long = (" ".join(["word"] * n) + "." for n in (25, 26))
    assert not count_of([short]).long
    assert len(count_of([f"Short one. {long.capitalize()}"]).long) == 1


@pytest.mark.parametrize(("limit", "code"), [("200", 0), ("199", 1)])
def test_it_fails_above_its_limit(limit, code, tmp_path, monkeypatch, capsys):
    (tmp_path / "fedgraph_flwr").mkdir()
    (tmp_path / "README.md").write_text("It tells you so much.\n")  # one hit in five words
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["prose", "--limit", limit])
    assert prose.main() == code
    assert "200.0" in capsys.readouterr().out
