"""Every claim of SECURITY.md, and the tests that attack it; what the page admits, and the tests that show it."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.agreement import measures, to_set
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.node.clients import client_at
from fedgraph_flwr.node.node import node_of
from fedgraph_flwr.wire.messages import MODEL
from tests.nodes import model_of
from tests.safety.coordinator import Coordinator

ROOT = Path(__file__).parents[2]

TRUST = ["says whom to trust, or what to set"]
"""Of a statement that promises nothing."""

CLAIMS: dict[str, list[str]] = {
    # two questions
    "**Who chooses what is run?**": [
        *("test_what_members_did_not_agree_on_is_refused_and_not_counted", "test_a_changed_agreement_is_no_agreement"),
        *("test_a_seed_cannot_be_searched_for", "test_what_a_method_draws_of_a_members_data_follows_its_secret"),
        "test_a_run_starts_with_the_model_that_members_agreed_on",
    ],
    "**Who learns what?**": [
        "test_rows_that_one_update_shows",
        "test_rows_that_a_sum_of_three_shows",
        "test_verified.py",
    ],
    "nothing set": ["test_what_the_coordinator_learns"],
    "`privacy.secagg=true`": [
        *("test_what_the_coordinator_learns", "test_messages_hold_no_plain_parameters", "test_one_list.py"),
        *(
            "test_show_says_what_others_learn_from_a_sum",
            "test_every_sum_without_noise_is_over_all_members_and_the_same_tables",
        ),
    ],
    "`privacy.dp=distributed` with": [
        "test_what_the_coordinator_learns",
        "test_the_terms_of_t_clients_hold_the_noise_that_is_booked",
    ],
    "`privacy.dp=client_fixed`": [
        "test_what_the_coordinator_learns",
        "test_epsilon_is_that_of_an_independent_accountant",
    ],
    "`privacy.dp=server_fixed`": [
        "test_what_the_coordinator_learns",
        "test_epsilon_is_that_of_an_independent_accountant",
    ],
    "Only noise bounds": ["test_updates_on_changing_batches_add_up_to_the_gradient_of_one_node"],
    # what to set
    "`node --agreement FILE": [
        *("test_what_members_did_not_agree_on_is_refused_and_not_counted", "test_epsilon_does_not_fall_within_a_run"),
        "test_records_older_than_the_audit_log_are_refused_until_the_owner_confirms",
    ],
    "`privacy.secagg=true`, and": TRUST,
    "nginx and node keys": ["test_access.py"],
    "Without an agreement:": TRUST,
    # who is trusted
    "A **party** trusts": TRUST,
    "The **server** trusts": ["test_probes.py"],
    "**Flower** transports": ["test_a_node_whose_key_is_not_registered_is_not_let_in"],
    "**Code**: a run ships": ["test_a_node_runs_what_a_party_that_it_trusts_has_signed_and_nothing_else"],
    "For every method: a client's number": [
        *(
            "test_a_wrong_value_is_a_sentence_on_the_server_and_with_its_path_on_the_node",
            "test_a_server_learns_no_names_of_files",
        ),
        *("test_describe_names_groups_and_epsilon", "test_a_reply_that_a_client_does_not_declare_never_leaves"),
    ],
    # protections
    "`node --agreement` |": [
        *("test_a_seed_cannot_be_searched_for", "test_a_resumption_gets_no_second_update_of_a_round"),
        *("test_a_version_hides_no_other_weights", "test_a_member_changes_its_key_with_the_old_one"),
        *(
            "test_a_new_member_is_accepted_by_a_signed_sentence_only",
            "test_schedules.py",
        ),
        "test_members_notice_a_whole_folder_from_a_back_up",
    ],
    "`privacy.secagg=true` ([protocol]": [
        *("test_messages_hold_no_plain_parameters", "test_two_lists_of_survivors_rebuild_no_secret_twice"),
        "test_no_node_of_a_fleet_adds_up_alone",
    ],
    "`privacy.dp`, up to": ["test_dp_audit.py", "test_the_terms_of_t_clients_hold_the_noise_that_is_booked"],
    "`strategy.aggregator` other": ["test_liars_below_the_breakdown_point_do_not_carry_the_model_away", "robust.md"],
    "`strategy.max_share`": ["test_a_client_that_claims_many_nodes_has_its_share_and_no_more"],
    "policy file, one reply": [
        *("test_what_a_policy_refuses", "test_a_round_asks_once", "test_the_first_round_shows_none"),
        "test_a_step_as_long_as_the_server_likes_reads_the_first_message_and_is_refused",
    ],
    "`node --trusted`": ["test_a_node_runs_what_a_party_that_it_trusts_has_signed_and_nothing_else"],
    "`node --peers`": ["test_a_server_that_swaps_keys_is_refused_where_they_are_pinned"],
    "nginx, certificates for operators": [
        "test_what_an_outsider_reaches",
        "test_no_operator_is_another_and_the_server_itself_is_named",
    ],
    "reply schemas": ["test_a_wrong_answer_is_refused_by_name_or_could_be_an_honest_one"],
    # what remains
    "**Models over many rounds.**": ["test_updates_on_changing_batches_add_up_to_the_gradient_of_one_node"],
    "**Columns of far ends**": ["test_two_links_tell_a_change_by_the_odds_that_the_ledger_books"],
    "**Another run without an agreement.**": ["test_runs_share_one_budget"],
    "**A client wrongly declared lost**": ["test_no_second_sum_of_a_round_but_over_those_left", "test_one_list.py"],
    "**Availability.**": TRUST,
    "**Restarts without `node --state`.**": ["test_a_restarted_node_remembers_what_was_asked"],
    "**Numbers of clients.**": ["test_a_server_that_swaps_keys_reads_what_is_sealed_where_nothing_is_pinned"],
}
"""The beginning of each statement → tests, or files of tests."""

PAGE = (ROOT / "SECURITY.md").read_text()


def statements() -> list[str]:
    """Paragraphs, items of lists and rows of tables, without their marks."""
    blocks = [line for part in PAGE.split("\n\n")[2:] for line in re.split(r"\n(?=- |\d\. |\|)", part)]
    kept = [
        re.sub(r"^(- |\d\. |\| )", "", block)
        for block in blocks
        if not re.match(r"#|\|---|\| (setting|protection) ", block)
    ]
    return [block for block in kept if not block.startswith(("Attacks with their tests", "##"))]


def test_every_claim_is_attacked_by_a_test_that_exists():
    for statement in statements():
        keys = [key for key in CLAIMS if statement.startswith(key)]
        assert keys, f"which test attacks this? {statement[:80]}"
    unused = [key for key in CLAIMS if not any(statement.startswith(key) for statement in statements())]
    assert not unused, "claims that the page makes no more"
    files = [path for folder in ("tests", "simulations") for path in (ROOT / folder).rglob("*")]
    tests = "".join(path.read_text() for path in files if path.suffix == ".py")
    for named in CLAIMS.values():
        for name in named if named is not TRUST else ():
            assert f"def {name}(" in tests or any(path.name == name for path in files), name


def test_the_goals_of_agreements_are_met():
    rows = list(measures())
    assert len(rows) == 3
    assert to_set() == ["--agreement", "--key", "--state", "privacy.dp=distributed", "privacy.secagg=true"]
    assert not [what for what, _, _, met in rows if not met]


SETTINGS = {
    "nothing": [],
    "secagg": ["privacy.secagg=true", "strategy.weighting=uniform"],
    "distributed": [
        *("privacy.secagg=true", "strategy.weighting=uniform", "privacy.dp=distributed", "privacy.noise_multiplier=4"),
        *("privacy.scores=none", "privacy.secagg_bits=20"),
    ],
    "client_fixed": [
        "strategy.weighting=uniform",
        "privacy.dp=client_fixed",
        "privacy.noise_multiplier=4",
        "privacy.scores=none",
    ],
    "server_fixed": [
        "strategy.weighting=uniform",
        "privacy.dp=server_fixed",
        "privacy.noise_multiplier=4",
        "privacy.scores=none",
    ],
}


def vector(arrays):
    """All values of named arrays in the order of their names."""
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in sorted(arrays)])


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_the_coordinator_learns(tmp_path, setting):
    """Of each member's update and of their sum: the table of SECURITY.md, from what arrives in a round."""
    bound = {"epsilon": 1e6} if "dp=" in " ".join(SETTINGS[setting]) else {}
    run = Coordinator(tmp_path, "train.local_steps=1", *SETTINGS[setting], **bound).run(1)
    run.begin()
    start = model_of(run.nodes[0])
    updates = []
    for node in run.nodes:
        member = node_of(node.context)
        client = GraphClient(member.cfg, client_at(member).client.graph)
        trained = client.fit([start[name] for name in client.shared], {})[0]
        updates.append(vector(dict(zip(client.shared, trained, strict=True))) - vector(start))
    if "secagg" not in " ".join(SETTINGS[setting]):
        for client, update in enumerate(updates):
            seen = vector(run.ask(client, "train", 1, {MODEL: start})[MODEL]) - vector(start)
            if setting == "client_fixed":
                norm = run.cfg.privacy.clipping_norm
                update = update * min(1.0, norm / np.linalg.norm(update))
                assert np.linalg.norm(seen) <= norm
            np.testing.assert_allclose(seen, update, atol=1e-6)
        return
    terms, ask = [], run.ask
    run.ask = lambda client, phase, *rest, **more: _noted(terms, phase, ask(client, phase, *rest, **more))
    opened = vector(run.opened_sum(1, [0, 1, 2], {MODEL: start})[MODEL])
    seen = [np.concatenate([array.ravel() for array in term.values()]) for term in terms]
    assert [term.dtype for term in seen] == [np.uint64] * 3
    for term in seen:  # the 16 highest bits of a small number are equal, those of a masked one change as coins do
        changes = np.unpackbits(((term ^ (term << np.uint64(1))) >> np.uint64(48)).astype(np.uint16).view(np.uint8))
        assert abs(changes.mean() - 0.5) < 7 * 0.5 / np.sqrt(changes.size), "a term is spread over all numbers"
    mean = np.mean(updates, axis=0)
    if setting == "secagg":
        np.testing.assert_allclose(opened - vector(start), mean, atol=1e-6)
        contribution = vector(start) + updates[0]  # another member subtracts its own term
        np.testing.assert_allclose(
            (3 * opened - contribution) / 2 - vector(start), (updates[1] + updates[2]) / 2, atol=1e-5
        )
    else:
        noise = opened - mean
        assert np.std(noise) > 10 * np.std(mean), "the sum is one of noise"


def _noted(terms, phase, reply):
    if phase == "train":
        terms.append(reply[MODEL])
    return reply
