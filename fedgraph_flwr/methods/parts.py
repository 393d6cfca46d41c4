"""The built-in parts of methods: their keys, halves, and what travels. `fedgraph_flwr.config.parts` says what a part is."""

from fedgraph_flwr.config import schema
from fedgraph_flwr.config.parts import Part
from fedgraph_flwr.methods.downlink import Input
from fedgraph_flwr.methods.uplink import ARRAYS, Mean
from fedgraph_flwr.methods.variates import ACKNOWLEDGED, VARIATES
from fedgraph_flwr.wire.reply_schema import ArrayField

_CLIENTS = "fedgraph_flwr.clients."
_SERVERS = "fedgraph_flwr.strategies."

PARAMETERS = ("parameters", "extra_parameters")
"""Members of a client that say what it trains."""

PROX = Part("objective", schema.ProxKeys, f"{_CLIENTS}fedprox:Prox", shared="holds clients at")
MOON = Part(
    "objective",
    schema.MoonKeys,
    f"{_CLIENTS}moon:Moon",
    hooks=("logits", "loss"),
    shared="contrasts each client's model with",
)
SAM = Part("objective", schema.SamKeys, f"{_CLIENTS}fedsam:Sam", hooks=PARAMETERS)

_SUMS = "sums over clients by the weights of their mean"
_ROUND = Input("the last round in which the client's reply arrived", {"round": ArrayField((1,), "int64", 0)})
_CHANGE = {VARIATES: Mean(ARRAYS, weight="shares")}
_CONTROL = {ACKNOWLEDGED: _ROUND, VARIATES: Input("the server's variate", zero=True)}

SCAFFOLD = Part(
    "variates",
    schema.ScaffoldKeys,
    f"{_CLIENTS}scaffold:Scaffold",
    f"{_SERVERS}scaffold:Scaffold",
    _CHANGE,
    _CONTROL,
    mean=True,
    step=_SUMS,
)
FEDDYN = Part(
    "variates",
    schema.FedDynKeys,
    f"{_CLIENTS}feddyn:FedDyn",
    f"{_SERVERS}feddyn:FedDyn",
    downlink={ACKNOWLEDGED: _ROUND},
    mean=True,
    step=_SUMS,
)
FEDDC = Part(
    "variates",
    schema.FedDCKeys,
    f"{_CLIENTS}feddc:FedDC",
    f"{_SERVERS}feddc:FedDC",
    _CHANGE,
    _CONTROL,
    mean=True,
    step=_SUMS,
)

SECOND = (*PARAMETERS, "predict", "personal_parameters", "predict_shared", "save", "load")
"""Members of a client that a second model needs."""

_BESIDE = "trains a second model beside"

# tuning trains at scoring too, after `train` has ended
DITTO = Part("personalization", schema.DittoKeys, f"{_CLIENTS}ditto:Ditto", hooks=SECOND, shared=_BESIDE)
APFL = Part("personalization", schema.ApflKeys, f"{_CLIENTS}apfl:Apfl", hooks=SECOND, shared=_BESIDE)
FINETUNE = Part(
    "personalization", schema.FinetuneKeys, f"{_CLIENTS}fedavg_ft:Finetune", hooks=(*SECOND, "train"), shared=_BESIDE
)
ALA = Part("personalization", schema.AlaKeys, f"{_CLIENTS}fedala:Ala", hooks=(*SECOND, "train"), shared=_BESIDE)

MOMENTUM = Part("server_optimizer", schema.MomentumKeys, server=f"{_SERVERS}fedavgm:Momentum", mean=True)
ADAM = Part("server_optimizer", schema.AdamKeys, server=f"{_SERVERS}fedopt:Adam", mean=True)
YOGI = Part("server_optimizer", schema.YogiKeys, server=f"{_SERVERS}fedopt:Yogi", mean=True)
ADAGRAD = Part("server_optimizer", schema.AdagradKeys, server=f"{_SERVERS}fedopt:Adagrad", mean=True)
