"""Exceptions for users: an error message and its exit code."""

import difflib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


def _by_alias(aliases: Mapping[str, str]) -> dict[str, str]:
    return {alias: name for name, others in aliases.items() for alias in others.split()}


KEY_ALIASES = _by_alias(
    {
        "train.lr": "learning_rate lr eta step_size",
        "train.local_steps, steps per round, or with train.sampler, train.local_epochs": "epochs epoch steps iterations",
        "train.optimizer": "optim optimiser optimizer opt",
        "train.weight_decay": "wd weight_decay l2",
        "train.batch_size, with train.sampler=neighbors or saint": "batch batch_size bs",
        "train.local_epochs": "local_epochs",
        "train.fanout": "num_neighbors fanouts fan_out",
        "train.clusters": "num_parts num_clusters",
        "train.momentum": "momentum",
        "train.loss": "loss criterion loss_fn",
        "train.loss=weighted, by train.class_weights": "class_weight class_weights pos_weight",
        "model.hidden": "hidden_dim hidden_size hidden_channels hidden dim",
        "model.layers": "num_layers n_layers layers num_hops hops",
        "model.dropout": "dropout drop",
        "model.heads, with model=gat": "heads num_heads n_heads attention_heads",
        "rounds": "num_rounds n_rounds comm_rounds communication_rounds global_rounds max_epochs max_iter n_iter trainer",
        "num_clients": "clients n_clients num_parties num_partitions",
        "seed": "random_seed random_state manual_seed",
        "privacy.epsilon_budget, the most that may be spent": "epsilon eps target_epsilon",
        "privacy.noise_multiplier": "noise sigma",
        "privacy.secagg": "secure_aggregation secure_agg",
        "privacy.clipping_norm": "max_grad_norm clip clipping",
        "strategy.aggregator": "aggregation agg",
        "evaluation.metric": "metric metrics score scoring",
        "evaluation.patience": "patience early_stopping",
        "strategy.fraction": "fraction_fit fraction_train client_fraction sample_rate fraction",
        "strategy": "method algorithm algo",
        "model": "network net arch gnn",
        "dataset": "data graph_name",
        "partition": "partitioner partitioning",
        "out": "output output_dir save_dir log_dir run_name experiment_name name hydra hydra.run.dir hydra.sweep.dir",
        "ray.actors": "workers num_workers n_jobs",
        "device=cuda": "gpu cuda",
        "split.train": "train_ratio train_size train_split",
        "split.val": "val_ratio val_size val_split validation_split",
        "split.folds with split.kind=kfold": "n_splits cv",
        "split.test": "test_size test_ratio test_split",
        "dtype": "precision fp16 amp",
        "dataset.nodes, with dataset=csbm": "num_nodes n_nodes n_samples",
        "checkpoint_every": "checkpoint save_every checkpoint_freq",
        "evaluation.every": "eval_every test_every eval_freq",
        "tracking_group": "group run_group tags",
        "the variable WANDB_PROJECT, with tracking=wandb": "project",
        "the option --verbose, in Python progress=True": "verbose",
        "tracking=wandb": "wandb use_wandb wandb_project",
    }
)
"""Name of a key elsewhere → name here."""

VALUE_ALIASES = _by_alias(
    {
        "auc": "roc_auc auroc rocauc roc-auc",
        "average_precision": "ap pr_auc auprc aucpr",
        "macro_f1": "f1 f1_macro f1_score f1-macro",
        "accuracy": "acc",
        "balanced_accuracy": "bacc balanced_acc bal_acc",
        "cross_entropy": "ce nll crossentropy cross-entropy",
        "weighted": "class_weighted balanced weighted_ce",
        "cuda": "gpu",
        "inline": "simulation local-simulation",
        "sage": "graphsage",
        "dirichlet": "label_skew lda noniid",
        "random": "iid",
    }
)
"""Name of a value elsewhere → name here."""


MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions that the content of a damaged or forged file can cause where it is read as what it should be."""


class FedGraphError(Exception):
    """Error: wrong input, or a failed run.

    The message has the problem, the value, its origin, and what is accepted.

    Attributes:
        exit_code: exit code of the command line (2: wrong input, 1: the run failed).
        code: its entry in docs/errors.md; empty: that of the module that raised it (`fedgraph_flwr.error_codes`).
    """

    exit_code = 2
    code = ""

    def __init__(self, message: object = "", code: str = ""):
        super().__init__(message)
        self.code = code or self.code


class RunFailed(FedGraphError):
    """Error: the input was valid, but the run failed, for example because too few clients replied."""

    exit_code = 1
    code = "run-failed"


class Refusal(FedGraphError):
    """Error: a party's node declines a request of the server, by its policy or its records."""

    code = "node-refused"


class TooManyClients(FedGraphError):
    """Error: a graph does not suffice for the number of clients.

    Attributes:
        limit: largest number that may suffice.
    """

    code = "partition"

    def __init__(self, message: str, limit: int):
        super().__init__(message)
        self.limit = limit


def _elsewhere(kind: str, value: str, names: Iterable[str]) -> str:
    """Return the name used here for a common alias; empty if it is not one."""
    if (word := VALUE_ALIASES.get(value.lower(), "")) in names:
        return word
    if kind.endswith("key"):
        return KEY_ALIASES.get(value.rpartition(".")[2].lower().replace("-", "_"), "")
    return ""


_LISTINGS = {"dataset": "datasets", "command": "--help"}
_LISTINGS |= {group: f"keys {group}" for group in ("strategy", "model", "partition", "protocol")}

MANY = 12
"""Number of names from which an error does not list them."""


def unknown(kind: str, value: object, accepted: Iterable[str], where: str = "", instead: str = "") -> FedGraphError:
    """Return an error for an unknown name, with the nearest match or all names, if they are few.

    Args:
        kind: kind of name, such as ``"dataset"``.
        value: the given name.
        accepted: the known names.
        where: file or key of the name.
        instead: what to do instead of using the nearest match.
    """
    names, text = sorted(accepted), sanitize(value, 80)
    prefix = text[: text.rfind(".") + 1]
    prefix = prefix if all(name.startswith(prefix) for name in names) else ""
    short = {name.removeprefix(prefix): name for name in names}  # the common section tells nothing
    near = difflib.get_close_matches(text.removeprefix(prefix), short, n=1)
    source = f" ({where})" if where else ""
    if here := _elsewhere(kind, text, names):
        instead = f"its name here is {here}"
    hint = f"; {instead}" if instead else f"; did you mean '{short[near[0]]}'?" if near else ""
    if _FROM_PYTHON.get() and instead and kind.endswith("key"):
        hint = re.sub(r"(?<=[a-z])\.(?=[a-z])", "__", hint)  # a keyword, such as train__lr
    if len(names) > MANY:
        listing = _LISTINGS.get(kind, "keys" if kind.endswith("key") else "")
        others = "" if hint.startswith("; its") else f" (`fedgraph-flwr {listing}` lists all)" if listing else ""
        return FedGraphError(f"{kind} '{text}' is unknown{source}{hint}{others}", "unknown-name")
    expected = " Expected" if hint.endswith("?") else "; expected"
    message = f"{kind} '{text}' is unknown{source}{hint}{expected} one of: {', '.join(names)}"
    return FedGraphError(message, "unknown-name")


def check_names(given: Iterable[object], accepted: Iterable[str], kind: str, where: str = "") -> None:
    """Check names against the accepted ones; the arguments are those of `unknown`."""
    names = list(accepted)
    for name in given:
        if name not in names:
            raise unknown(kind, name, names, where)


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Raise an error of the operating system in the block as a `FedGraphError` that begins with ``what``."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        raise FedGraphError(f"{what}: {getattr(error, 'strerror', None) or error}") from error


_FROM_PYTHON: ContextVar[bool] = ContextVar("from_python", default=False)


@contextmanager
def from_python() -> Iterator[None]:
    """Let errors in the block, or in a decorated function, name arguments of Python instead of options (`by_caller`).

    They end with one traceback.
    """
    token = _FROM_PYTHON.set(True)
    try:
        yield
    except FedGraphError as error:
        from fedgraph_flwr.error_codes import code_of

        if not hasattr(error, "__notes__"):
            error.add_note(f"[{code_of(error)}]: docs/errors.md explains this code")
        raise error from None
    finally:
        _FROM_PYTHON.reset(token)


def by_caller(option: str, argument: str) -> str:
    """Return an option of the command line, or within `from_python` the argument that replaces it."""
    return argument if _FROM_PYTHON.get() else option


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ty") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number if isinstance(number, int) else f'{number:.7g}'} {noun if number == 1 else plural}"


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


LIBRARIES = {"flwr", "greenlet", "networkx", "numpy", "pandas", "ray", "scipy", "sklearn", "torch", "torch_geometric"}
"""Packages whose exceptions are usually caused by their caller."""


def located(error: BaseException, public: bool = False) -> str:
    """Format an exception as one line with its type, message, file and line.

    The location is the innermost frame of the user's code, else of this package, else of all.

    Args:
        error: the exception, as caught.
        public: leave out the message, which may quote data, and the file's folder.
    """
    frames = [
        (frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    ours = __name__.partition(".")[0]
    user_frames = [frame for frame in frames if frame[0] not in {ours, *LIBRARIES, *sys.stdlib_module_names}]
    candidates = user_frames or [frame for frame in frames if frame[0] == ours] or frames
    what = type(error).__name__ if public or not str(error) else f"{type(error).__name__}: {sanitize(error, 500)}"
    if not candidates:
        return what
    _, code, line = candidates[-1]
    file = Path(code.co_filename).name if public else code.co_filename
    return f"{what} ({file}, line {line}, in {code.co_name})"


def sanitize(text: object, most: int = 300) -> str:
    """Convert foreign text to one bounded line of printable characters, safe for a terminal."""
    line = "".join(c if c.isprintable() else "?" for c in str(text).replace("\n", " "))
    return line if len(line) <= most else line[: most - 3] + "..."


def no_yaml(path: object, error: Exception) -> str:
    """Return the error message for an invalid YAML file, with its line if known."""
    reason = ": ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
    return f"{path}{line_of(error)}: invalid YAML ({reason or first_line(error)})"


def line_of(error: Exception) -> str:
    """Return the position of a YAML error, ``, line 3, column 5``; empty if unknown."""
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
