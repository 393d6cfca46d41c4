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
import contextlib
import functools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.config.config_file import dotted_keys
from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.fleet import agreements, audit_chain
from fedgraph_flwr.fleet.agreements import Agreement, Refused
from fedgraph_flwr.launch.agreed import accepted, opened, refusals
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


_PROOFS = """
--peers DIR  the members' public keys, NAME.pub or node_N.pub of client N, as they gave them to you; another key is refused
--code FILE...  Flower's bundle of the runs, where it is not that of this installation; read it before you sign
--before FILE  the version before (default: found by its digest in the agreement's folder)
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
        ("show", _show, "say what members agree on, what leaves a node, and who learns what", _PROOFS),
        (
            "sign",
            _sign,
            "print what show prints, and sign it with your node's key",
            "--key FILE  your node's private key (fleet join)\n--replaced NAME  your name, with the key that a new one replaces"
            + _PROOFS,
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
            more: dict[str, dict[str, Any]] = {"key": {"required": True}, "state": {"required": name != "status"}}
            add_options(action, text.strip(), last={"default": 0}, **more)
        action.set_defaults(func=run)


def _new(args: argparse.Namespace) -> int:
    from fedgraph_flwr.config import configuration, to_json

    given = dict(_pair(word, "--member", "NAME=FILE.pub") for word in args.member)
    keys = {name: _public_text(Path(file)) for name, file in given.items()}
    counted = any(word.startswith("num_clients=") for word in args.overrides)  # else config= may have fewer members
    overrides = args.overrides if counted else [*args.overrides, f"num_clients={len(keys)}"]
    values = json.loads(to_json(configuration(overrides, defaults=["engine=fleet"])))
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
        "start": _scored(Path(values["evaluate"]))
        if values["evaluate"] and args.start == agreements.SEED
        else args.start,
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
    proofs = dict.fromkeys(keys, "of the file that you gave")
    print("\n".join(described(agreement, proofs, _known_code(args.code), earlier)))
    print(f"wrote {args.out}: each member reads it (agree show) and signs it (agree sign --key FILE)")
    return 0


def _show(args: argparse.Namespace) -> int:
    _print(opened(args.file), args)
    return 0


def _print(agreement: Agreement, args: argparse.Namespace, own_key: str = "") -> list[str]:
    """Print what members sign, and return the digests of code that this installation does not know.

    Raises:
        FedGraphError: a member gave another key, or a file is another's, or the key is none that the version before has.
    """
    proofs = proofs_of(agreement, args.peers, own_key)
    before = opened(args.before) if args.before else _before(agreement)
    if before and before.digest != agreement.values["continues"]:
        raise FedGraphError(f"{args.before} is not the version that {agreement.path} continues")
    if replaced := own_key and args.replaced:
        had = before.values["members"].get(replaced, {}).get("key") if before else None
        if had != own_key:
            where = before.path if before else "the version before, which is not here (--before FILE)"
            raise FedGraphError(f"this key is not that of {replaced} in {where}")
    known = _known_code(args.code)
    print("\n".join(described(agreement, proofs, known, before)))
    return [code for code in agreement.codes if code not in (*known, agreements.RELEASES)]


def _sign(args: argparse.Namespace) -> int:
    from fedgraph_flwr.fleet.keys import check_key

    agreement, key = opened(args.file), check_key(args.key)
    if other := _print(agreement, args, agreements.key_text(key.public_key())):
        raise FedGraphError(
            f"{args.file} names code that is not this installation's, {other[0]}: read its bundle, and pass it as --code FILE"
        )
    with refusals():
        agreement.check_time(time.time())
        name = agreement.sign(key, args.replaced or "")
    with system_errors(f"cannot write {args.file}"):
        agreements.write(agreement)
    print(f"signed as {name}; {_signed(agreement)}; digest {agreement.digest}")
    return 0


def _status(args: argparse.Namespace) -> int:
    with refusals():
        records = agreements.remembered(args.state) if args.state else {}
    if not args.file.is_dir():
        _print_status(opened(args.file), args.state, records)
        return 0
    versions, ignored = accepted(args.file, records if args.state else None)
    for agreement in versions:
        try:
            agreement.check_version(records)
            _print_status(agreement, args.state, records)
        except Refused as error:
            ignored.append(str(error))
    for why in ignored:
        print(f"ignored: {why}")
    return 0


def _print_status(agreement: Agreement, state: Path | None, records: Mapping[str, Any]) -> None:
    print(f"{agreement.values['name']}, version {agreement.values['version']}, digest {agreement.digest}")
    print(f"{_signed(agreement)}; until {agreement.values['until']}")
    if state:
        record = records.get(agreement.digest, agreements.NEW)
        left = f"the next is run {record['last'] + 1}" if record["last"] < agreement.values["runs"] else "none is left"
        withdrawn = f"; withdrawn on {record['withdrawn']}" if record["withdrawn"] else ""
        print(f"this node used {record['last']} of {agreement.values['runs']} runs; {left}{withdrawn}")


def _confirm(args: argparse.Namespace) -> int:
    agreement = opened(args.file)
    if not 0 <= args.last <= agreement.values["runs"]:
        raise FedGraphError(
            f"--last {args.last}: expected a run from 0 to {agreement.values['runs']}, as {args.file} allows"
        )
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
    from fedgraph_flwr.secure.spent import SpentPrivacy, ledgers, spent

    entries = verified(state) if audit_chain.files_of(state) else ()
    runs = [str(entry.get("agreement", "")).partition("/") for entry in entries]
    seen = {int(number) for digest, _, number in runs if digest == agreement.digest}
    confirmed = agreements.remembered(state).get(agreement.digest, {}).get("known", 0)
    lost = {*range(confirmed + 1, last + 1)} - seen
    cfg = compose([], json.dumps(agreement.values["configuration"]))
    if cfg.privacy.dp == "none" or not lost:
        return
    count = (len(lost) + (min(lost) - 1 in seen)) * releases_of(cfg)  # the one before may have gone on, too
    ending = "" if cfg.privacy.unit == "client" else f"_{cfg.privacy.unit}"
    file = state / f"privacy_{agreement.values['name']}{ending}.json"
    others = ledgers(state, cfg.privacy.unit)
    for path in sorted({file, *others}):  # a policy's purpose may have its own
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


def described(
    agreement: Agreement, proofs: Mapping[str, str], known: Mapping[str, str], before: Agreement | None
) -> Iterator[str]:
    """Yield lines that say what members agree on, and who learns what.

    Args:
        agreement: the agreement.
        proofs: for members whose keys are known, how.
        known: where code is from, by its digest.
        before: the version before, if it is there.
    """
    from fedgraph_flwr.cli.describe import described as run_lines
    from fedgraph_flwr.cli.describe import link_rules
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.config.lookup import locate, named_code
    from fedgraph_flwr.config.repeating import unusual
    from fedgraph_flwr.data.plugins import BASELINES, packages
    from fedgraph_flwr.methods.declared import uplink_of
    from fedgraph_flwr.methods.uplink import Relay, shown

    values, names = agreement.values, list(agreement.members.values())
    cfg = compose([], json.dumps(values["configuration"] | {"engine": "fleet"}))
    weights = values["weights"] if agreement.weights else "all count alike"
    yield f"{values['name']}, version {values['version']}: {_shown(values['purpose'])}"
    yield f"members: {', '.join(names)}; until {values['until']}; at most {values['runs']} runs; weights: {weights}"
    for client, key in agreement.pins.items():
        proof = proofs.get(names[client], "UNPROVEN")
        yield f"  {names[client]}, client {client}: key {agreements.fingerprint(key)} ({proof})"
    if len(proofs) < len(names):
        yield "  compare unproven keys with their owners by telephone (ssh-keygen -lf NAME.pub), or pass --peers DIR"
    any_release = {agreements.RELEASES: "whatever a key of node --trusted signs, also later"}
    for code in agreement.codes:
        yield f"code: {(any_release | dict(known)).get(code, f'OTHER than that of this installation: {code}')}"
    yield f"tables: of {f'the schema {_shown(schema)}' if (schema := values['schema']) else 'any schema that all members share'}"
    begins = {agreements.SEED: "from the seed", agreements.CONTINUES: "with the model that an earlier run ended with"}
    yield f"each run starts {begins.get(values['start'], 'with the model ' + values['start'])}"
    if values["changed"]:
        yield f"joined, left or counts otherwise since the version before: {', '.join(values['changed'])}"
    ours = (__name__.partition(".")[0], BASELINES, *packages())
    if foreign_code := [
        target for target in named_code(cfg).values() if target.partition(".")[0].partition(":")[0] not in ours
    ]:
        yield f"NOT DESCRIBED, since this is no code of this package: {', '.join(foreign_code)}; read it before you sign"
    else:
        yield from run_lines(cfg, values["runs"])
    secure, noised = cfg.privacy.secagg, agreement.noised
    what = "one sum per round over all members" if secure else "each member's updates"
    if not foreign_code and link_rules(cfg) is None:
        yield f"the coordinator learns: {what}{', with noise' if cfg.privacy.dp != 'none' else ''}; whatever the lines above name"
        relays = any(isinstance(one, Relay) for _, _, one in shown(uplink_of(locate(cfg.strategy.client), cfg)))
        model = "the model, and what is forwarded to it" if relays else "the model"
        yield f"each other member learns: {model}; {_others_learn(len(names), secure, noised)}"
    if values["coordinator"] == agreements.VERIFIED:
        yield "nodes compute each model: the coordinator can only deliver messages, or stop a run"
        yield f"a member that colludes with it moves the model by at most {cfg.privacy.max_update:g} a round (max_update)"
    bound = "no bound" if values["epsilon"] is None else f"at most {values['epsilon']:g}"
    yield f"ε of all runs of agreements named {values['name']}: {bound}"
    if values["accepted"]:
        yield f"accepted: {values['accepted']}"
    yield from _waits(values["absent"], secure, noised)
    yield "configuration, as far as it is not what this package uses by itself:"
    settings = unusual(cfg, values["configuration"])
    yield from (f"  {key}: {_shown(settings[key])}" for key in sorted(settings.keys() - {*agreements.FREE}))
    yield from _changes(agreement, before)
    yield f"{_signed(agreement)}; digest {agreement.digest}"


def proofs_of(agreement: Agreement, peers: Path | None, own_key: str = "") -> dict[str, str]:
    """Return how members' keys are known, by name.

    Raises:
        FedGraphError: a member gave another key, or one who signs compares and has none.
    """
    proofs: dict[str, str] = {}
    for client, key in agreement.pins.items():
        name, text = agreement.members[client], agreements.key_text(key)
        files = [peers / f"{stem}.pub" for stem in (name, f"node_{client}")] if peers else []
        if file := next(filter(Path.is_file, files), None):
            if _public_text(file) != text:
                raise FedGraphError(f"{agreement.path} has another key of {name} than {file}: compare them with {name}")
            proofs[name] = f"as {file}"
        elif text == own_key:
            proofs[name] = "yours"
        elif own_key and peers:
            raise FedGraphError(f"--peers {peers} has no key of {name}: expected {name}.pub or node_{client}.pub")
    return proofs


def _before(agreement: Agreement) -> Agreement | None:
    """Return the version before, if it is in the agreement's folder."""
    for path in sorted(agreement.path.parent.glob("*.yaml")) if agreement.values["continues"] else ():
        with contextlib.suppress(Refused):
            if (version := agreements.read(path)).digest == agreement.values["continues"]:
                return version
    return None


def _changes(agreement: Agreement, before: Agreement | None) -> Iterator[str]:
    """Yield the differences to the version before, of all that members sign."""
    values = agreement.values
    if before is None:
        if values["continues"]:
            yield f"NOT COMPARED with the version before ({values['continues'][:12]}), which is not here: pass --before FILE"
        return
    yield f"changes since {before.path}, version {before.values['version']}, {_signed(before)}:"
    old, new = _content(before), _content(agreement)
    for key in agreements.changes(old, new):
        yield f"  {key}: {_shown(old.get(key))} → {_shown(new.get(key))}"


def _content(agreement: Agreement) -> dict[str, Any]:
    """Return what a version has besides its place after others, by dotted key, with fingerprints of keys."""
    named = {
        name: value | {"key": agreements.fingerprint(agreements.public_key(value["key"]))}
        for name, value in agreement.values["members"].items()
    }
    content = dotted_keys(agreement.values | {"members": named})
    place = ("version", "continues", "changed")
    return {key: value for key, value in content.items() if key not in place and not key.startswith("signatures.")}


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


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
        yield "a lost member is waited for (strategy.timeout); then the run ends: resume it, or start the next"
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


def _scored(run: Path) -> str:
    """Return the digest of the model of a finished run, as nodes receive it."""
    from fedgraph_flwr.data.graph import read_tensors
    from fedgraph_flwr.secure.masked import digest
    from fedgraph_flwr.store.earlier import headline_model, keeps_models

    path = headline_model(run)
    if keeps_models(path):
        raise FedGraphError(
            f"evaluate={run}: its server kept parameters of each client, and an agreement names one model"
        )
    return digest({name: tensor.numpy() for name, tensor in read_tensors(path)[0].items()}).hex()


def _codes(bundles: list[str]) -> str | list[str]:
    digests = [agreements.code_digest(_bundle(Path(file))) for file in bundles] or [_installed()]
    return digests if len(digests) > 1 else digests[0]


def _known_code(bundles: list[str]) -> dict[str, str]:
    """Return where the code of bundles, and that of this installation, is from, by digest."""
    origins = {agreements.code_digest(_bundle(Path(file))): f"that of {file}" for file in bundles}
    origins |= {_installed(): "that of this installation"}
    return {digest: f"{source} ({digest[:12]})" for digest, source in origins.items()}


def _bundle(app: Path) -> bytes:
    if not app.is_file():
        raise FedGraphError(f"--code {app}: no such file; `flwr build` writes one")
    return app.read_bytes()


@functools.cache
def _installed() -> str:
    """Return the digest of what a run of this installation would ship."""
    import tempfile

    from flwr.cli.build import build_fab_from_disk

    from fedgraph_flwr.engine.flower import app_folder

    with tempfile.TemporaryDirectory() as folder:
        return agreements.code_digest(build_fab_from_disk(app_folder(Path(folder))))
