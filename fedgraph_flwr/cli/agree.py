"""Command ``agree``: members choose together which runs their nodes accept; each signs agreement.yaml with its node's key.

Examples:
  fedgraph-flwr agree new config=runs/tried/config.yaml --member alice=alice.pub --member bob=bob.pub --member carol=carol.pub \
--name rings --purpose "find mule accounts" --runs 12 --until 2027-06-30
  fedgraph-flwr agree show agreement.yaml
  fedgraph-flwr agree sign agreement.yaml --key keys/alice
  fedgraph-flwr node --agreement agreement.yaml ...
  fedgraph-flwr run --agreement agreement.yaml engine=fleet out=runs/march
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.fleet import agreements, audit_chain
from fedgraph_flwr.fleet.agreements import Agreement
from fedgraph_flwr.launch.agreed import opened, refusals
from fedgraph_flwr.party.options import add_options

_FILE = {"type": Path, "metavar": "FILE", "nargs": "?", "default": Path("agreement.yaml")}

_NEW = """
--member NAME=FILE.pub...  a member and its node's public key (fleet join); the first is client 0
--name NAME  name of the agreement, and of its ledger of ε at nodes
--purpose TEXT  what the model is for
--until DATE  last day, such as 2027-06-30
--runs N  most runs (default: 12)
--epsilon P  most ε of all runs together (default: no bound)
--absent WORD  allowed: runs go on without a member, which needs privacy.dp=distributed (default: forbidden)
--weight NAME=N...  a member's fixed weight, for all members (default: all count alike)
--start WORD  continues: from a model of an earlier run; or the digest of a model (default: seed)
--schema FILE  a member's client file: all need tables of this schema (default: any that they share)
--code FILE...  Flower's bundle of the runs, or several while members upgrade (default: that of this installation)
--releases  accept bundles that a key of `node --trusted` signed, instead of one bundle
--continues FILE  the version before
--accept-difference  go on without noise after a member joined or left, which shows its update
--out FILE  the agreement to write (default: agreement.yaml)
"""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``agree``."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="write an agreement from the configuration of a run that was tried")
    new.add_argument("overrides", nargs="*", metavar="key=value", help="the runs' configuration, as for run")
    options: dict[str, dict[str, Any]] = {name: {"required": True} for name in ("member", "name", "purpose", "until")}
    options |= {"runs": {"default": 12}, "out": {"default": Path("agreement.yaml")}, "epsilon": {"default": None}}
    options |= {"absent": {"default": agreements.FORBIDDEN}, "start": {"default": agreements.SEED}}
    add_options(new, _NEW, **options)
    new.set_defaults(func=_new)
    for name, run, about, text in (
        ("show", _show, "say in words what members agree on, what leaves a node, and who learns what", ""),
        (
            "sign",
            _sign,
            "sign it with your node's key",
            "--key FILE  your node's private key (fleet join)\n--replaced NAME  your name, with the key that a new one replaces",
        ),
        (
            "status",
            _status,
            "print who signed, and how many runs a node has left",
            "--state DIR  the node's state folder",
        ),
        (
            "confirm",
            _confirm,
            "let your node go on with a state folder from a back-up",
            "--state DIR  the node's state folder\n--last N  the last run that your node took part in (default: 0)",
        ),
        ("withdraw", _withdraw, "let your node refuse it from now on", "--state DIR  the node's state folder"),
    ):
        action = actions.add_parser(name, help=about)
        action.add_argument("file", **_FILE)  # type: ignore[arg-type]
        if text:
            add_options(action, text, key={"required": True}, state={"required": name != "status"}, last={"default": 0})
        action.set_defaults(func=run)


def _new(args: argparse.Namespace) -> int:
    from fedgraph_flwr.config import configuration, to_json

    given = dict(_pair(word, "--member", "NAME=FILE.pub") for word in args.member)
    keys = {name: _public_text(Path(file)) for name, file in given.items()}
    defaults = [f"num_clients={len(keys)}", "engine=fleet"]
    values = json.loads(to_json(configuration(args.overrides, defaults=defaults)))
    earlier = opened(args.continues) if args.continues else None
    members = {name: {"client": client, "key": key} for client, (name, key) in enumerate(keys.items())}
    weights = {name: _weight(text) for name, text in (_pair(word, "--weight", "NAME=N") for word in args.weight)}
    content = {
        "agreement": 1,
        "name": args.name,
        "version": earlier.values["version"] + 1 if earlier else 1,
        "continues": earlier.digest if earlier else "",
        "changed": agreements.changes(earlier.counted, dict.fromkeys(members, 1) | weights) if earlier else [],
        "accepted": agreements.DIFFERENCE if args.accept_difference else "",
        "purpose": args.purpose,
        "until": args.until,
        "runs": args.runs,
        "coordinator": values["privacy"]["coordinator"],
        "absent": args.absent,
        "weights": weights or agreements.UNIFORM,
        "epsilon": args.epsilon,
        "start": args.start,
        "code": agreements.RELEASES if args.releases else _codes(args.code),
        "schema": _schema(args.schema),
        "members": members,
        "configuration": agreements.signed_part(values),
        "signatures": {},
    }
    agreement = Agreement(content, args.out)
    with system_errors(f"cannot write {args.out}"):
        agreements.write(agreement)
    try:
        agreement = opened(args.out)
    except FedGraphError:
        args.out.unlink()
        raise
    print("\n".join(described(agreement)))
    print(f"wrote {args.out}: each member reads it (agree show) and signs it (agree sign --key FILE)")
    return 0


def _show(args: argparse.Namespace) -> int:
    print("\n".join(described(opened(args.file))))
    return 0


def _sign(args: argparse.Namespace) -> int:
    from fedgraph_flwr.fleet.keys import check_key

    agreement = opened(args.file)
    with refusals():
        agreement.check_time(time.time())
        name = agreement.sign(check_key(args.key), args.replaced or "")
    with system_errors(f"cannot write {args.file}"):
        agreements.write(agreement)
    print(f"signed as {name}; {_signed(agreement)}; digest {agreement.digest}")
    return 0


def _status(args: argparse.Namespace) -> int:
    agreement = opened(args.file)
    print(f"{agreement.values['name']}, version {agreement.values['version']}, digest {agreement.digest}")
    print(f"{_signed(agreement)}; until {agreement.values['until']}")
    if args.state:
        with refusals():
            record = agreements.used(args.state, agreement.digest)
        left = f"the next is run {record['last'] + 1}" if record["last"] < agreement.values["runs"] else "none is left"
        withdrawn = f"; withdrawn on {record['withdrawn']}" if record["withdrawn"] else ""
        print(f"this node used {record['last']} of {agreement.values['runs']} runs; {left}{withdrawn}")
    return 0


def _confirm(args: argparse.Namespace) -> int:
    agreement = opened(args.file)
    with refusals():
        _book_lost(agreement, args.state, args.last)
        agreements.confirm(args.state, agreement.digest, audit_chain.read_head(args.state)["n"], args.last)
    print(f"this node goes on after run {args.last} of {args.file}; what it did in lost runs is forgotten")
    return 0


def _book_lost(agreement: Agreement, state: Path, last: int) -> None:
    """Book what runs may have spent that a state folder from a back-up does not know: all releases of each."""
    from fedgraph_flwr.cli.describe import releases_of
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.secure.audit import verified
    from fedgraph_flwr.secure.spent import SpentPrivacy, spent

    entries = verified(state) if audit_chain.files_of(state) else ()
    runs = [str(entry.get("agreement", "")).partition("/") for entry in entries]
    seen = {int(number) for digest, _, number in runs if digest == agreement.digest}
    confirmed = agreements.used(state, agreement.digest).get("known", 0)
    lost = {*range(confirmed + 1, last + 1)} - seen
    cfg = compose([], json.dumps(agreement.values["configuration"]))
    if cfg.privacy.dp == "none" or not lost:
        return
    count = (len(lost) + (min(lost) - 1 in seen)) * releases_of(cfg)  # the one before may have gone on, too
    ending = "" if cfg.privacy.unit == "client" else f"_{cfg.privacy.unit}"
    own = state / f"privacy_{agreement.values['name']}{ending}.json"
    others = [
        path for path in state.glob(f"privacy_*{ending}.json") if ending or not path.stem.endswith(("_row", "_payment"))
    ]
    for path in sorted({own, *others}):  # a policy's purpose may have its own
        ledger = SpentPrivacy(path, math.inf, path.stem)
        ledger.book(f"lost {agreement.digest[:12]}", cfg, count)
        print(f"{path.name} has what runs up to {last} may have spent besides: ε is {spent(ledger.booked):.3g} now")


def _withdraw(args: argparse.Namespace) -> int:
    agreement = opened(args.file)
    with refusals():
        agreements.withdraw(args.state, agreement.digest, time.time())
    line = dict.fromkeys(("run", "strategy", "refused"), "") | dict.fromkeys(("round", "exchange", "received"), 0)
    what = {"phase": agreements.WITHDRAWN, "agreement": f"{agreement.digest}/0", "sent": {}, "noise": {}}
    audit_chain.append(args.state, line | what)
    print(f"this node refuses runs of {args.file} from the next message on; tell the other members")
    return 0


def described(agreement: Agreement) -> Iterator[str]:
    """Yield lines that say in words what members agree on, and who learns what."""
    from fedgraph_flwr.cli.describe import described as run_lines
    from fedgraph_flwr.config import compose

    values, names = agreement.values, list(agreement.members.values())
    cfg = compose([], json.dumps(values["configuration"] | {"engine": "fleet"}))
    weights = values["weights"] if agreement.weights else "all count alike"
    yield f"{values['name']}, version {values['version']}: {values['purpose']}"
    yield f"members: {', '.join(names)}; until {values['until']}; at most {values['runs']} runs; weights: {weights}"
    begins = {agreements.SEED: "anew", agreements.CONTINUES: "with a model that members trained"}
    yield f"each run starts {begins.get(values['start'], 'with the model ' + values['start'])}"
    if values["changed"]:
        yield f"joined, left or counts otherwise since the version before: {', '.join(values['changed'])}"
    yield from run_lines(cfg)
    secure, noised = cfg.privacy.secagg, agreement.noised
    what = "one sum per round over all members" if secure else "each member's updates"
    yield f"the coordinator learns: {what}{', with noise' if cfg.privacy.dp != 'none' else ''}; whatever the lines above name"
    others = "the model; " + _others_learn(len(names), secure, noised)
    yield f"each other member learns: {others}"
    if values["coordinator"] == agreements.VERIFIED:
        yield "nodes compute each model: the coordinator can only deliver messages, or stop a run"
        yield f"a member that colludes with it moves the model by at most {cfg.privacy.max_update:g} a round (max_update)"
    bound = "no bound" if values["epsilon"] is None else f"at most {values['epsilon']:g}"
    yield f"ε of all runs together: {bound}"
    if values["accepted"]:
        yield f"accepted: {values['accepted']}"
    yield from _waits(values["absent"], secure, noised)
    yield f"{_signed(agreement)}; digest {agreement.digest}"


def _others_learn(count: int, secure: bool, noised: bool) -> str:
    """Return what a member can compute who also sees a round's sum."""
    if noised:
        return "of a sum minus its own term, what ε allows"
    if secure and count == 3:
        return "if it also sees a sum, the sum of the two others, by subtracting its own term"
    return f"if it also sees a sum, the sum of the {count - 1} others" if secure else "nothing more"


def _waits(absent: str, secure: bool, noised: bool) -> Iterator[str]:
    """Say where a run waits or ends."""
    if absent == agreements.ALLOWED:
        yield "a member that is down is left out of a round; each month ends with a model"
    elif secure and not noised:
        yield "a lost member is waited for (strategy.timeout); then the run ends with its last model, and the next run starts"
    else:
        yield "a run needs all members at its start"


def _signed(agreement: Agreement) -> str:
    signers = agreement.signers
    missing = [name for name in agreement.members.values() if name not in signers]
    return f"signed by {', '.join(signers) or 'nobody'}" + (f"; missing: {', '.join(missing)}" if missing else "")


def _pair(word: str, option: str, form: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not (name and sign and value):
        raise FedGraphError(f"{option} {word}: expected {form}")
    return name, value


def _weight(text: str) -> int:
    if not text.isdecimal():
        raise FedGraphError(f"--weight {text}: expected a whole number above 0")
    return int(text)


def _public_text(path: Path) -> str:
    with system_errors(f"cannot read {path}"):
        text = path.read_text()
    try:
        return agreements.key_text(agreements.public_key(text))
    except ValueError as error:
        raise FedGraphError(
            f"{path} is not a node's public key (EC P-384): fedgraph-flwr fleet join writes one"
        ) from error


def _schema(file: Path | None) -> Sequence[int]:
    from fedgraph_flwr import partition
    from fedgraph_flwr.data.schema import fingerprint

    return fingerprint(partition.load(file)) if file else []


def _codes(bundles: list[str]) -> str | list[str]:
    digests = [agreements.code_digest(_bundle(Path(file))) for file in bundles]
    return digests if len(digests) > 1 else agreements.code_digest(_bundle(None)) if not digests else digests[0]


def _bundle(app: Path | None) -> bytes:
    """Return a bundle's content: the file, or what a run of this installation would ship."""
    if app is not None:
        if not app.is_file():
            raise FedGraphError(f"--code {app}: no such file; `flwr build` writes one")
        return app.read_bytes()
    import tempfile

    from flwr.cli.build import build_fab_from_disk

    from fedgraph_flwr.engine.flower import app_folder

    with tempfile.TemporaryDirectory() as folder:
        content: bytes = build_fab_from_disk(app_folder(Path(folder)))
    return content
