"""What other libraries call our keys and values, for the sentence about a name that is unknown."""

USUAL_KEYS = {
    **dict.fromkeys(("learning_rate", "lr", "eta"), "train.lr"),
    **dict.fromkeys(
        ("epochs", "local_epochs", "epoch", "steps", "iterations"), "train.local_steps, full-batch steps a round"
    ),
    **dict.fromkeys(("optim", "optimiser", "optimizer", "opt"), "train.optimizer"),
    **dict.fromkeys(("wd", "weight_decay", "l2"), "train.weight_decay"),
    **dict.fromkeys(("batch", "batch_size", "bs"), "nothing: a step is full-batch"),
    **dict.fromkeys(("momentum",), "train.momentum"),
    **dict.fromkeys(("loss", "criterion", "loss_fn"), "train.loss"),
    **dict.fromkeys(("class_weight", "class_weights", "pos_weight"), "train.loss=weighted, by train.class_weights"),
    **dict.fromkeys(("hidden_dim", "hidden_size", "hidden_channels", "hidden", "dim"), "model.hidden"),
    **dict.fromkeys(("num_layers", "n_layers", "layers"), "model.layers"),
    **dict.fromkeys(("dropout", "drop", "p"), "model.dropout"),
    **dict.fromkeys(("num_rounds", "n_rounds", "comm_rounds", "communication_rounds", "global_rounds"), "rounds"),
    **dict.fromkeys(("clients", "n_clients", "num_parties", "num_partitions"), "num_clients"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    **dict.fromkeys(("metric", "metrics", "score"), "evaluation.metric"),
    **dict.fromkeys(("patience", "early_stopping"), "evaluation.patience"),
    **dict.fromkeys(
        ("fraction_fit", "fraction_train", "client_fraction", "sample_rate", "fraction"), "strategy.fraction"
    ),
    **dict.fromkeys(("method", "algorithm", "algo"), "strategy"),
    **dict.fromkeys(("network", "net", "arch", "gnn"), "model"),
    **dict.fromkeys(("data", "graph_name"), "dataset"),
    **dict.fromkeys(("partitioner", "partitioning"), "partition"),
    **dict.fromkeys(("output", "output_dir", "save_dir", "log_dir"), "out"),
    **dict.fromkeys(("gpu", "cuda"), "device=cuda"),
}
"""What others call a key, and what it is here."""

USUAL_VALUES = {
    **dict.fromkeys(("roc_auc", "auroc", "rocauc", "roc-auc"), "auc"),
    **dict.fromkeys(("ap", "pr_auc", "auprc", "aucpr"), "average_precision"),
    **dict.fromkeys(("f1", "f1_macro", "f1_score", "f1-macro"), "macro_f1"),
    **dict.fromkeys(("acc",), "accuracy"),
    **dict.fromkeys(("bacc", "balanced_acc", "bal_acc"), "balanced_accuracy"),
    **dict.fromkeys(("ce", "nll", "crossentropy", "cross-entropy"), "cross_entropy"),
    **dict.fromkeys(("class_weighted", "balanced", "weighted_ce"), "weighted"),
    **dict.fromkeys(("gpu",), "cuda"),
    **dict.fromkeys(("simulation", "local-simulation"), "inline"),
    **dict.fromkeys(("graphsage",), "sage"),
    **dict.fromkeys(("label_skew", "lda", "noniid"), "dirichlet"),
    **dict.fromkeys(("iid",), "random"),
}
"""What others call a value; said where it is accepted."""
