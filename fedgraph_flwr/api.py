"""Python API: every public name here is also an attribute of ``fedgraph_flwr``.

    import fedgraph_flwr as fg

    run = fg.run(strategy="fedprox", dataset="cora", num_clients=10)
    run.table()
    fg.compare([run, fg.run(dataset="cora", num_clients=10)])

The command line calls these functions. Slow imports are deferred.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fedgraph_flwr.config import DatasetConfig, RayConfig, RunConfig, configuration, described, one_of
from fedgraph_flwr.config.run_keys import Place, RunKeys
from fedgraph_flwr.errors import FedGraphError, TooManyClients, check_names, from_python
from fedgraph_flwr.evaluation.best_round import failed_replies
from fedgraph_flwr.launch.interrupt import after_the_round
from fedgraph_flwr.launch.progress import Shown
from fedgraph_flwr.launch.progress import progress as shown_progress
from fedgraph_flwr.logs import log

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.figure import Figure

    from fedgraph_flwr.party.use.predict import ItemPredictions, PairPredictions, Predictor
    from fedgraph_flwr.report.runs import FinishedRun

OnRow = Callable[[dict[str, Any]], Any]
"""Callback with a finished round: ``round`` and the columns of `Run.rounds`."""

CLIENTS = "clients"
"""Subfolder of a run with the client files of graphs in memory."""


INSTEAD = {
    "predict_proba": "run.predict(...).probabilities",
    "evaluate": "fedgraph_flwr.run(evaluate=run)",
    "state_dict": "run.model().state_dict()",
    "parameters": "run.model().parameters()",
    "metrics": "run.table()",
    "results": "run.table()",
    "accuracy": "run.score",
    "name": "run.path.name",
}
"""Attributes elsewhere → what a run has."""


class Run:
    """Run in a folder, whose files are read on demand.

    Attributes:
        path: the run folder.
    """

    def __init__(self, path: Place):
        self.path = Path(path).absolute()

    def __getattr__(self, name: str) -> Any:
        instead = f": call {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"a Run has no '{name}'{instead}", name=name, obj=self)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def config(self) -> RunConfig:
        """Resolved configuration."""
        return dataclasses.replace(self._read.cfg, out=str(self.path))

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of the run (see `Recorder.finish`); empty until it is finished."""
        return self._read.summary

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        from fedgraph_flwr.store.folder import CHECKPOINT

        return (self.path / CHECKPOINT).is_file()

    @property
    def score(self) -> float:
        """Headline score, such as the test accuracy at the best validation round; its name is ``summary["headline"]``.

        Raises:
            FedGraphError: the run is not finished.
        """
        from fedgraph_flwr.store.results import headline_score

        return float(headline_score(self._ended()))

    @property
    def rounds(self) -> "pd.DataFrame":
        """One row per round: ``seconds``, training ``loss``, number of clients, bytes, and every mean over clients."""
        import pandas as pd

        rows = pd.DataFrame([_row(record) for record in self._read.every_round])
        return rows.set_index("round") if len(rows) else rows.rename_axis("round")

    @property
    def history(self) -> "pd.DataFrame":
        """Same table as `rounds`, under its name in other libraries."""
        return self.rounds

    @property
    def clients(self) -> "pd.DataFrame":
        """One row per client: its scores at the best validation round, or at the last one if that is the headline's."""
        import pandas as pd

        if not self._read.rounds:
            raise FedGraphError(f"{self.path} has no scored round yet: resume the run with resume={self.path}")
        scores = {key.replace("-", "_"): values for key, values in self._read.per_client.items()}
        return pd.DataFrame(scores).rename_axis("client")

    def table(self) -> "pd.DataFrame":
        """Return test scores, with chance levels: one row per score, one column per selection of rounds."""
        import pandas as pd

        from fedgraph_flwr.report.runs import score_table

        return pd.DataFrame.from_dict(score_table(self._ended(), self.config), orient="index")

    def plot(self, metric: str = "") -> "Figure":
        """Plot validation (thin) and test (bold) means of a metric by round, by default of the run's own.

        Raises:
            FedGraphError: no round has such a score.
        """
        return plot(self, metric=metric)

    def report(self, path: Place | None = None) -> Path:
        """Write one self-contained HTML page, by default in the run folder, and return its path."""
        from fedgraph_flwr.party.use.predict import load_predictor
        from fedgraph_flwr.report.writing import write_report

        return write_report([self.path], Path(path) if path else self.path / "report.html", load=load_predictor)

    @from_python()
    def predict_pairs(
        self, pairs: Sequence[Any], graph: Any = None, client: int | None = None, scaled: bool = False
    ) -> "PairPredictions":
        """Score pairs of nodes, for ``task=links``: ids [K, 2]; the other arguments are those of `predict`.

        Raises:
            FedGraphError: as `predict`, or an id that the graph does not have.
        """
        predictor, prepared_graph = self._predictor_and_graph(graph, client, scaled)
        return predictor.predict_pairs(prepared_graph, pairs)

    @from_python()
    def predict(self, graph: Any = None, client: int | None = None, scaled: bool = False) -> "ItemPredictions":
        """Predict every node of a graph with the trained model.

        Args:
            graph: PyG ``Data`` or ``HeteroData`` with features as in training; labels are optional. None for the client's graph.
            client: client whose model to use; None for the shared model.
            scaled: whether the features of a graph without a schema are scaled as in training, for runs on imported tables.

        Returns:
            ``labels``, ``probabilities`` [N, C], ``to_frame()``, ``write(path)``; for tasks with targets, ``values`` [N, T]
            instead of the first two.

        Raises:
            FedGraphError: the run is not finished, the number or the scaling of features differs, or only clients have a model.
        """
        predictor, prepared_graph = self._predictor_and_graph(graph, client, scaled)
        return predictor.predict(prepared_graph)

    def _predictor_and_graph(self, graph: Any, client: int | None, scaled: bool) -> tuple["Predictor", Any]:
        """Return the predictor of a client, and the graph, or the client's graph if there is none."""
        predictor = self._predictor(client)
        if graph is not None:
            return predictor, predictor.given(graph, scaled)
        if client is None:
            raise FedGraphError("nothing to predict: pass a graph, or client=I for a client's graph")
        return predictor, self._client_graph(client)

    @from_python()
    def export(self, folder: Place, client: int | None = None) -> Path:
        """Write the trained model to a folder that plain PyG loads, with scores and a model card, and return the folder.

        Raises:
            FedGraphError: the model or method cannot be exported, or the folder has other files.
        """
        from fedgraph_flwr.party.use.export import export

        return export(self._predictor(client), Path(folder), self.path)

    @from_python()
    def model(self, client: int | None = None, scaled: bool = False) -> "torch.nn.Module":
        """Return the trained model: ``model(x, edge_index)`` gives logits [N, C], as does ``model(data)``.

        ``model(model.prepare(graph))`` gives those of a `Graph`.

        Args:
            client: client whose model to use; None for the shared model.
            scaled: whether ``x`` is scaled as in training, for runs on imported tables.

        Raises:
            FedGraphError: the run is not finished, its client files are missing, or only clients have a model.
        """
        predictor = self._predictor(client)
        model = predictor.network(self._client_graph(client or 0))
        predictor.input_spec = dataclasses.replace(predictor.input_spec, scaled=scaled)
        model.register_forward_pre_hook(predictor.tensor_inputs, with_kwargs=True)
        return model

    def resume(self, rounds: int | None = None, progress: Shown = "auto", on_round: OnRow | None = None) -> "Run":
        """Resume from the last checkpoint, to the end or to another number of rounds.

        Raises:
            FedGraphError: the run has no checkpoint, or it is after ``rounds``.
        """
        keys: RunKeys = {"resume": self.path}
        if rounds is not None:
            keys["rounds"] = rounds
        return run(progress=progress, on_round=on_round, **keys)

    def __repr__(self) -> str:
        return f"<Run {self._label()}>"

    def _repr_html_(self) -> str:
        import html

        shown = f"<p>{html.escape(self._label())}</p>"
        with suppress(FedGraphError):  # not finished, or not a run
            shown = f"<p>{html.escape(self.verdict)}</p>{self.table().to_html(float_format='%.4f', border=0)}"
            shown += self._curve()
            page, where = self.path / "report.html", html.escape(os.path.relpath(self.path / "report.html"))
            shown += f'<p><a href="{where}">{where}</a></p>' if page.is_file() else "<p>report() writes a page</p>"
        return shown

    def _curve(self) -> str:
        """Return the validation and test scores by round as a small picture; empty without any."""
        import base64

        with suppress(FedGraphError):
            data = base64.b64encode(self.plot().png(60)).decode()  # type: ignore[attr-defined]
            return f'<img alt="scores by round" src="data:image/png;base64,{data}">'
        return ""

    @property
    def verdict(self) -> str:
        """The result in one sentence, with its distance from chance and from training alone, if such a run is next to it.

        Raises:
            FedGraphError: the run is not finished.
        """
        from fedgraph_flwr.report.headline import in_words

        self._ended()
        return in_words(self._read)

    def _label(self) -> str:
        from fedgraph_flwr.store.results import headline_score

        try:
            label, summary = self._read.label, self.summary
        except FedGraphError as error:
            return str(error)
        result = f"{summary['headline']} = {headline_score(summary):.4f}" if summary else "not finished"
        return f"{label}: {result}, {self.path}"

    def _ended(self) -> dict[str, Any]:
        if not self.summary:
            raise FedGraphError(f"{self.path} is not finished; resume it with resume={self.path}")
        return self.summary

    def _client_graph(self, client: int) -> Any:
        from fedgraph_flwr import partition

        cfg = self.config
        if cfg.on_fleet and not cfg.graph:
            where = f"{self.path} is a run of the fleet '{cfg.engine}', whose graphs are not on this machine"
            raise FedGraphError(f"{where}: pass graph=, or run `fedgraph-flwr predict` at the party")
        return partition.load_client(cfg, client)

    def _predictor(self, client: int | None) -> "Predictor":
        from fedgraph_flwr.party.use.predict import load_predictor

        self._ended()
        return load_predictor(self.path, client)

    @cached_property
    def _read(self) -> "FinishedRun":
        from fedgraph_flwr.report.runs import load_run

        return load_run(self.path)


@from_python()
def run(
    *overrides: Any,
    data: Any = None,
    graphs: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
    target: str = "",
    progress: Shown = "auto",
    on_round: OnRow | None = None,
    **keys: Unpack[RunKeys],
) -> Run:
    """Train, and return the finished run.

        fg.run("train.lr=0.05", strategy="fedprox", dataset="cora", train={"local_steps": 1}, seed=1)
        fg.run(data, strategy="fedprox")

    Args:
        overrides: ``key=value``, as on the command line; or a graph, or a list of graphs, as for ``data``.
        data: PyG ``Data`` or ``HeteroData`` in memory, which ``partition`` and ``num_clients`` divide among the clients. A list
            is one graph per client, as of ``graphs``.
        graphs: PyG ``Data`` or ``HeteroData`` in memory, one per client, instead of a dataset and its partition: ``x``,
            ``edge_index``, integer ``y`` (-1: unknown). Masks are the split, if present.
            ``node_id`` identifies nodes held by several clients. With ``task=graphs``, a list of ``Data`` per client, each
            with one class ``y``, or numbers. ``dataset`` is then only a name. The graphs are stored in
            the run's folder, in ``clients/``.
        classes: with ``data`` or ``graphs``, the names of the labels 0..C-1.
        target: with ``HeteroData``, the node type to classify; optional if only one type has ``y``.
        progress: True, False, or "auto": a bar in a notebook or a terminal.
        on_round: called after each round with a dict: ``round`` and the columns of `Run.rounds`. Its exceptions end the run.
        keys: any key, with precedence over overrides: nested (``train={"lr": 0.1}``), dotted (``**{"train.lr": 0.1}``),
            ``config="mine.yaml"``, ``resume="runs/..."``. A value may be your class or function, such as ``model=MyNet``.

    Raises:
        FedGraphError: wrong input.
        RunFailed: the run could not continue.
        KeyboardInterrupt: Ctrl-C; its note says how to resume.
    """
    from fedgraph_flwr.config.short_names import lengthened

    texts, data, graphs = _held(overrides, data, graphs, classes, target)
    texts, values = lengthened(texts, keys)
    if data is not None or graphs is not None:
        return train(_with_graphs(texts, values, data, graphs, classes, target), progress, on_round)
    return train(configuration(texts, values), progress, on_round)


def _held(
    overrides: Sequence[Any], data: Any, graphs: Sequence[Any] | None, classes: Sequence[str], target: str
) -> tuple[list[str], Any, Sequence[Any] | None]:
    """Return the ``key=value`` texts among positional arguments, and the graph or the graphs; both are None without any.

    Raises:
        FedGraphError: several of them, or ``classes`` or ``target`` without any.
    """
    texts = [argument for argument in overrides if isinstance(argument, str)]
    held = [argument for argument in overrides if not isinstance(argument, str)]
    given = [argument for argument in (*held, data, graphs) if argument is not None]
    if len(given) > 1:
        what = "data= is one graph to partition, graphs=[...] has one per client"
        raise FedGraphError(f"{what}: pass only one of them, and only once")
    if given and graphs is None:
        [one] = given
        data, graphs = (None, one) if isinstance(one, list | tuple) else (one, None)
    if not given and (classes or target):
        key = "classes=" if classes else "target="
        raise FedGraphError(f"{key} applies only to data= and graphs=[...]: pass one of them, or leave it out")
    return texts, data, graphs


def train(cfg: RunConfig, progress: Shown = "auto", on_round: OnRow | None = None) -> Run:
    """Train with a configuration, and return the finished run.

    Args:
        cfg: the configuration.
        progress: as of `run`.
        on_round: as of `run`.

    Raises:
        FedGraphError: wrong input.
        RunFailed: the run could not continue.
        KeyboardInterrupt: Ctrl-C; the first one finishes the current round and saves a checkpoint.
    """
    from fedgraph_flwr.launch.prepare import with_folder
    from fedgraph_flwr.launch.runner import run as start

    cfg = with_folder(cfg)
    done = Run(cfg.out)
    try:
        with after_the_round(), shown_progress(cfg, progress) as (show, on_wait):

            def on_record(record: dict[str, Any]) -> None:
                show(record)
                if on_round:
                    on_round(_row(record))

            start(cfg, on_record, on_wait)
    except KeyboardInterrupt as error:
        how = f"to resume: fedgraph_flwr.load_run({cfg.out!r}).resume()"
        error.add_note(how if done.resumable else "no checkpoint was saved, so the run cannot be resumed")
        raise
    return done


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's record as a row of `Run.rounds`, with its ``round``."""
    phases = record["phases"].values()
    row = {"round": record["round"], "seconds": record["seconds"]}
    row |= {"clients": len(record["cohort"]), "failed": len(failed_replies(record))}
    row |= {key: sum(phase[key] for phase in phases) for key in ("bytes_up", "bytes_down")}
    return row | record.get("train", {}) | record.get("metrics", {})


@from_python()
def load_run(path: Place) -> Run:
    """Load the run of a folder, finished or not.

    Raises:
        FedGraphError: the folder holds no run.
    """
    stored_run = Run(path)
    stored_run.config  # noqa: B018 (reads the folder)
    return stored_run


load = load_run
"""Shorter name of `load_run`."""


class SweepResult:
    """Result of a sweep.

    Attributes:
        path: CSV file with one row per run. ``.md`` and ``.html`` are next to it.
        verdicts: the findings as sentences, the first one first.
        table: one row per setting, with a column for each of its keys, and method: ``mean``, ``half`` of its 95 % interval
            and standard ``deviation`` over ``seeds``, ``difference`` from the reference, cost. Shares are in percent.
        runs: the finished runs, unless ``keep="none"``.
        failures: label and reason of each run without a score.
    """

    def __init__(self, comparison: Mapping[str, Any], path: Path, settings: Mapping[str, Sequence[str]]):
        import pandas as pd

        self.path = path
        self.verdicts = [f"{line}." for line in (*comparison["verdicts"], *comparison["equal"])]
        self.failures = {failure["run"]: failure["reason"] for failure in comparison["failures"]}
        self.runs = [Run(path.parent / folder) for cell in comparison["cells"] for folder in cell["runs"]]
        rows = []
        for cell in comparison["cells"]:
            difference = cell["difference"] or {}
            row = {"setting": cell["setting"], **dict(word.split("=", 1) for word in settings.get(cell["setting"], ()))}
            row |= {key: cell[key] for key in ("method", "choice")}
            row |= {"mean": cell.get("mean"), "half": cell.get("half"), "deviation": cell["deviation"]}
            row |= {"seeds": cell.get("n", 0)}
            row |= {"difference": difference.get("mean"), "difference_half": difference.get("half")}
            rows.append(row | {key: cell[key] for key in ("seconds", "bytes") if key in cell})
        self.table = pd.DataFrame(rows)
        self._cells = comparison["cells"]

    def latex(self, cells: Literal["interval", "std"] = "interval") -> str:
        """Return the table as LaTeX with booktabs; the best method of a row, and those level with it, are bold.

        Args:
            cells: spread behind a mean, half of its 95 % interval or the standard deviation.
        """
        from fedgraph_flwr.sweeps.latex import latex

        return latex(self._cells, cells)

    @property
    def rows(self) -> "pd.DataFrame":
        """One row per run."""
        import pandas as pd

        return pd.read_csv(self.path)

    @property
    def page(self) -> Path:
        """HTML page."""
        return self.path.with_suffix(".html")

    def __repr__(self) -> str:
        failed = [f"{len(self.failures)} runs failed: see failures"] if self.failures else []
        return "\n".join([*self.verdicts, *failed, f"page: {self.page}"])

    def _repr_html_(self) -> str:
        import html

        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self.verdicts)
        return lines + self.table.to_html(float_format="%.4g", border=0)


@from_python()
def sweep(
    *overrides: Any,
    data: Any = None,
    graphs: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
    target: str = "",
    out: Place | None = None,
    jobs: int = 0,
    search: int = 0,
    baseline: str = "",
    baselines: bool = True,
    margin: float | None = None,
    keep: Literal["rounds", "all", "none"] = "rounds",
    progress: Shown = "auto",
    **keys: Any,
) -> SweepResult:
    """Run many configurations, as ``fedgraph-flwr sweep``; a list is one run per value, ``[[...]]`` one value that is a list.

        fg.sweep(strategy=["fedavg", "fedprox"], seed=range(3), dataset="csbm", **{"train.lr": [0.01, 0.003]})
        fg.sweep("sweep.yaml")
        fg.sweep(graphs, strategy=["fedavg", "fedprox"], seed=range(3))
        fg.sweep(lambda seed: [draw(seed), draw(seed + 100)], strategy=["fedavg", "fedprox"], seed=range(3))

    Args:
        overrides: ``key=value,value`` as on the command line, or one sweep file; or a graph, or a list of graphs.
        data: as of `run`. The graph is stored in the folder of the results, and each run partitions it. Or a function that
            returns the graph, or a list of graphs, of a seed.
        graphs: as of `run`. They are stored in the folder of the results, once per seed, which draws their split.
        classes: as of `run`.
        target: as of `run`.
        out: folder of the results; by default ``sweeps``, or that of the file.
        jobs: number of parallel processes; 0: in this process. With processes, start it below ``if __name__ == "__main__":``.
        search: number of trials of a search.
        baseline: reference of differences; by default ``Local``.
        baselines: whether to add Majority and Local.
        margin: points within which methods are level; by default 1.
        keep: ``rounds``: configuration, rounds and summary of every run; ``all``: the whole folders; ``none``.
        progress: as of `run`.
        keys: any key of a run, with one value or several; ``tune="train.lr"`` selects by validation scores.

    Raises:
        FedGraphError: wrong input.
        KeyboardInterrupt: Ctrl-C; the same call resumes.
    """
    from fedgraph_flwr.config.short_names import lengthened
    from fedgraph_flwr.launch.progress import bar
    from fedgraph_flwr.report.sweep_page import write_sweep
    from fedgraph_flwr.sweeps import runs, spec
    from fedgraph_flwr.sweeps.execution import How, check_free, execute, present
    from fedgraph_flwr.sweeps.outcome import outcome
    from fedgraph_flwr.sweeps.overrides import FOLDER, given_values, parse_sweep
    from fedgraph_flwr.sweeps.results_index import ResultsIndex, composed
    from fedgraph_flwr.sweeps.rows import alone

    one_of(keep, ("rounds", "all", "none"), "keep")
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in overrides]
    texts, data, graphs = _held(words, data, graphs, classes, target)
    texts, values = lengthened(texts, keys)
    files, words = [Path(word) for word in texts if "=" not in word], [word for word in texts if "=" in word]
    words += [f"{key}={values}" for key, values in given_values(values).items()]
    folder = Path(out) if out else None
    if len(files) > 1:
        raise FedGraphError(f"sweep reads one file, got {len(files)}: call it once for each")
    if files and (search or baseline or not baselines or margin is not None):
        raise FedGraphError(
            f"search, baseline, baselines and margin do not apply to a sweep file: set them in {files[0]}"
        )
    held = None
    if data is not None or graphs is not None:
        if files:
            raise FedGraphError(f"{files[0]} names its data: leave out the file, or the graphs in memory")
        from fedgraph_flwr.sweeps.memory import stored

        held = stored(words, folder or FOLDER, data, graphs, classes, target)
        words = held.words
    extra = {} if margin is None else {"margin": margin}
    requested = (
        spec.load(files[0], folder, words)
        if files
        else parse_sweep(words, folder, search, baseline, baselines, **extra)
    )
    if held:
        requested.by_seed, requested.made = held.by_seed, held.command
    check_free(requested)
    composed(requested, ResultsIndex(requested, False).missing(""))
    with alone(requested.results):
        index = ResultsIndex(requested, False)
        kept = None if keep == "none" else runs.Keep(requested.folder / f"{requested.name}-runs", keep == "all")
        done, missing = 0, len(index.missing(""))
        with bar(requested.name, missing, progress) as show:

            def on_row(cell: Any, row: Any, left: int, seconds: float | None) -> None:
                nonlocal done
                done += 1
                show(done, f"{cell.setting}, {cell.method}, seed {cell.seed}")

            execute(index, How(jobs, keep=kept), on_row)
        summary = present(index)
    comparison = outcome(summary)
    write_sweep(comparison, requested.results)
    result = SweepResult(comparison, requested.results, requested.settings)
    requested.results.with_suffix(".tex").write_text(result.latex())
    return result


@contextmanager
def ray_session(address: str = "") -> Iterator[None]:
    """Share one Ray instance between all runs with ``engine="ray"`` in the block, instead of one per run.

    Args:
        address: auto or ``HOST:PORT`` of a cluster's head; empty for a local instance.
    """
    from fedgraph_flwr.engine.ray import ray_session

    with ray_session(RayConfig(address=address)):
        yield


@from_python()
def compare(*runs: Run | Place | Iterable[Run | Place]) -> "pd.DataFrame":
    """Compare runs; those that differ only in their seeds are one row, with mean and standard deviation.

    Args:
        runs: runs or their folders, or a list of them.

    Returns:
        Columns: ``strategy``, ``dataset``, other differing keys, ``seeds`` (their number), ``headline`` (name of the score),
        its ``mean`` and ``deviation``, its ``chance`` level, further scores at operating points, ``seconds`` per round,
        ``megabytes`` per run.

    Raises:
        FedGraphError: a folder holds no run, or an unfinished one.
    """
    import pandas as pd

    from fedgraph_flwr.report.runs import comparison

    return pd.DataFrame(comparison([_run(one)._read for one in _several(runs)]))


@from_python()
def worth(
    runs: Iterable[Run | Place], client: int | None = None, metric: str = "", clusters: str = "auto"
) -> "pd.DataFrame":
    """Compare runs on one party's own test items with the first of them, with paired 95 % intervals and the cost.

    Args:
        runs: the local model's run first, then boosting, federated ones; at a party, its node's state folder.
        client: index of the party; None for a state folder.
        metric: accuracy, balanced_accuracy, macro_f1, f1_at_threshold, auc or average_precision; default: the headline of the
            first run.
        clusters: items that are drawn together: ``day``, ``component``, ``item``; ``auto`` takes the first that applies.

    Returns:
        One row per method: ``score`` and ``difference`` with intervals, ``verdict`` (better, worse, not decided), the cost.

    Raises:
        FedGraphError: fewer than two methods, runs that score other items, or too few items.
    """
    from fedgraph_flwr.party.use.worth import worth as compared

    folders = [one.path if isinstance(one, Run) else Path(one) for one in _several([runs])]
    return compared(folders, client, metric, clusters)


@from_python()
def audit(state: Place, expect: str = "") -> "pd.DataFrame":
    """Verify the audit log of a node and return one row per run: requests, refusals, bytes, what left, ε.

    Args:
        state: the node's state folder.
        expect: ``NUMBER:HASH`` that an earlier audit printed, to notice a log that was written again.

    Raises:
        FedGraphError: there is no log, or a line was changed, removed, moved or cut off, with its number.
    """
    from fedgraph_flwr.secure.audit import audit as verified

    return verified(Path(state), expect)


@from_python()
def blend(runs: Iterable[Run | Place], out: Place) -> Run:
    """Weigh the logits of finished runs by each client's validation items, and return the blend as a run with scores.

    Args:
        runs: simulations with the same data, partition, split and task, such as a network and boosting.
        out: the new run folder; ``blend.json`` in it has the weights.

    Raises:
        FedGraphError: fewer than two runs, a task without classes, runs that score other items, or runs of a fleet.
    """
    from fedgraph_flwr.party.use.blend import blend

    blend([_run(one).path for one in _several([runs])], Path(out))
    return Run(out)


@from_python()
def forget(run: Run | Place, party: str | int, out: Place, graph: Place | None = None) -> Run:
    """Remove a party from a finished simulation exactly: return the run that never had it, replayed from the first round.

    Args:
        run: the run.
        party: the party's name in its client file, or its client's number.
        out: the new run folder. ``out/files`` has the survivors' files.
        graph: folder with the survivors' files, imported and linked again; None: the run's files without the party.

    Raises:
        FedGraphError: the run has no such party, or its files cannot be made without it.
    """
    from fedgraph_flwr.party.forget import forget, plan

    forget(plan(_run(run).path, str(party), Path(graph) if graph else None), Path(out))
    return Run(out)


def plot(*runs: Run | Place | Iterable[Run | Place], metric: str = "") -> "Figure":
    """Plot validation (thin) and test (bold) means of a metric by round for several runs.

    Args:
        runs: runs or their folders, or a list of them; a last text that is no folder is the metric.
        metric: name of the score, such as ``accuracy``, ``loss`` or ``macro_f1``; default: the first run's ``evaluation.metric``.

    Raises:
        FedGraphError: no round of a run has such a score.
    """
    from fedgraph_flwr.report.figures import curve

    if len(runs) > 1 and isinstance(runs[-1], str) and not Path(runs[-1]).exists():
        *runs, metric = runs  # type: ignore[assignment]
    read = [_run(one)._read for one in _several(runs)]
    metric = metric or read[0].cfg.evaluation.headline
    for one in read:
        scores = {key for record in one.rounds for key in record["metrics"] if key.startswith("test_")}
        check_names([metric], {key.removeprefix("test_") for key in scores}, "metric", str(one.folder))
    return curve(read, metric)


def choices(group: str = "strategy") -> "pd.DataFrame":
    """List the names of a group (strategy, dataset, partition, model, protocol), one per row.

    Returns:
        Columns: ``about``, such as a method's paper, and ``keys``, the values of its YAML file.

    Raises:
        FedGraphError: the group is unknown.
    """
    import pandas as pd

    return pd.DataFrame.from_dict(described(group), orient="index").rename_axis(group)


def keys(group: str = "") -> "pd.DataFrame":
    """List the keys of a group, such as ``train``, of a name, such as ``strategy=fedspa``, or all.

    Returns:
        Columns: ``kind`` of value, ``accepted`` values, ``default`` and ``meaning``.

    Raises:
        FedGraphError: the group, or the name in it, is unknown.
    """
    import pandas as pd

    from fedgraph_flwr.config.key_docs import keys_of, own_keys_of, select

    groups, path = select(group)
    entries = own_keys_of(groups[0], path) if path else [key for name in groups for key in keys_of(name)]
    return pd.DataFrame(map(dataclasses.asdict, entries)).set_index("name")


def _run(one: Run | Place) -> Run:
    if not isinstance(one, Run | str | os.PathLike):
        raise FedGraphError(f"expected a run, or its folder, got a {type(one).__name__}: pass what fg.run() returned")
    return one if isinstance(one, Run) else load_run(one)


def _several(runs: Sequence[Run | Place | Iterable[Run | Place]]) -> list[Run | Place]:
    """Return the runs of arguments that are runs, folders, or lists of them.

    Raises:
        FedGraphError: there are none.
    """
    entries: list[Run | Place] = []
    for one in runs:
        entries += list(one) if isinstance(one, Iterable) and not isinstance(one, Run | str | os.PathLike) else [one]
    if not entries:
        raise FedGraphError("no runs: pass what fg.run() returned, or folders of runs")
    return entries


def _with_graphs(
    overrides: Sequence[str],
    keys: Mapping[str, Any],
    data: Any,
    graphs: Sequence[Any] | None,
    classes: Sequence[str],
    target: str,
) -> RunConfig:
    """Return the configuration of a run on graphs in memory, one per client or one to partition, and write them to its folder."""
    from fedgraph_flwr.launch.checks import check_method
    from fedgraph_flwr.launch.prepare import check_unused, with_folder
    from fedgraph_flwr.partition import objects, store
    from fedgraph_flwr.store.folder import LAUNCHER, owned

    keys, several = dict(keys), graphs is not None
    option, held = objects.option_of(several), [data] if graphs is None else graphs
    name = objects.name_of(keys.pop("dataset", None), [*keys, *overrides], several)
    given = [*objects.defaults(held, target), *([f"num_clients={len(graphs)}"] if graphs is not None else [])]
    cfg = configuration(overrides, keys, given)
    if cfg.on_fleet:
        why = f"engine={cfg.engine} is a fleet, whose nodes have their own graphs"
        raise FedGraphError(f"{option} requires a simulation, but {why}: set engine=inline or ray, or leave it out")
    if graphs is None:
        cfg, made = _divided(
            data, cfg, lambda extra: configuration(overrides, keys, [*given, extra]), name, classes, target
        )
    elif cfg.num_clients != len(graphs):
        raise FedGraphError(f"num_clients={cfg.num_clients}, but graphs has {len(graphs)}: leave it out")
    else:
        made = objects.clients(graphs, cfg, name, classes, target)
    cfg = with_folder(dataclasses.replace(cfg, dataset=DatasetConfig(name)))
    check_unused(cfg)
    check_method(cfg)
    folder = Path(cfg.out) / CLIENTS
    cfg = dataclasses.replace(cfg, graph=str(folder))
    with owned(Path(cfg.out), LAUNCHER):
        store.write(folder, made, cfg)
    return cfg


def _divided(
    data: Any,
    cfg: RunConfig,
    compose: Callable[[str], RunConfig],
    name: str,
    classes: Sequence[str],
    target: str,
) -> tuple[RunConfig, list[Any]]:
    """Return the clients' parts of one graph; of fewer clients than the default if it is too small for them.

    Args:
        data: the graph.
        cfg: the run's configuration.
        compose: composes it again with one more default.
        name: name of the dataset.
        classes: as of `run`.
        target: as of `run`.

    Raises:
        FedGraphError: errors of `partitioned`; the graph is too small for a number of clients that the user set.
    """
    from fedgraph_flwr.partition import objects

    first = cfg.num_clients
    while True:
        try:
            made = objects.partitioned(data, cfg, name, classes, target)
        except TooManyClients as error:
            fewer = min(error.limit, cfg.num_clients - 1)
            again = compose(f"num_clients={fewer}") if fewer > 1 else cfg
            if again.num_clients != fewer:
                raise
            cfg = again
            continue
        if cfg.num_clients != first:
            text = "num_clients=%d instead of the default %d, for which the graph is too small"
            log(WARNING, text, cfg.num_clients, first)
        return cfg, made
