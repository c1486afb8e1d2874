import re
from pathlib import Path

import pytest

from collm.cli.cluster_settings import replica_config, with_replicas
from collm.cli.config_file import load_config, read_config
from collm.cli.config_reference import resolved_config
from collm.cluster.config import ClusterConfig
from collm.config import CollmConfig
from collm.errors import ConfigError

PRESET = Path(__file__).parents[3] / "configs" / "two-replicas.yaml"

CLUSTER = {
    "seed": 10,
    "replica": {"data_dir": "state"},
    "server": {"host": "0.0.0.0", "port": 8123},
    "training": {"jobs": [{"adapter": "shared", "data": "snips", "seed": 1}]},
    "cluster": {
        "replicas": [
            {"name": "home", "jobs": [{"adapter": "own", "data": "clinc150"}]},
            {"name": "work", "data_dir": "elsewhere", "threads": 3},
        ]
    },
}


def of_replica(index, *, named_jobs=(), num_cores=8, data=CLUSTER):
    config = read_config(CollmConfig, data)
    return replica_config(config, index, named_jobs=list(named_jobs), num_cores=num_cores)


def test_number_makes_replicas_of_default_settings():
    config = with_replicas(CollmConfig(), 3)
    assert [entry.name for entry in config.cluster.replicas] == ["r0", "r1", "r2"]


def test_one_replica_or_no_number_is_no_cluster():
    assert with_replicas(CollmConfig(), 1) == CollmConfig()
    assert with_replicas(CollmConfig(), None) == CollmConfig()


def test_number_must_fit_the_listed_replicas():
    config = read_config(CollmConfig, CLUSTER)
    assert with_replicas(config, 2) == config
    assert with_replicas(config, None) == config
    for number in (1, 3):
        with pytest.raises(ConfigError, match=f"--replicas {number}: .* lists 2"):
            with_replicas(config, number)


def test_replica_has_a_folder_and_listener_of_its_own():
    home, work = of_replica(0), of_replica(1)
    assert home.replica.data_dir == "state/home"
    assert work.replica.data_dir == "elsewhere"
    for config in (home, work):
        assert (config.server.host, config.server.port) == ("127.0.0.1", 0)
        assert config.cluster == ClusterConfig()


def test_cores_are_shared_evenly_unless_threads_are_set():
    assert [of_replica(index).replica.threads for index in (0, 1)] == [4, 3]
    assert of_replica(0, num_cores=1).replica.threads == 1
    everywhere = {**CLUSTER, "replica": {"threads": 2}}
    assert [of_replica(index, data=everywhere).replica.threads for index in (0, 1)] == [2, 3]


def test_replica_computes_on_its_own_device_or_on_that_of_all():
    data = {
        "replica": {"device": "cuda:1"},
        "cluster": {"replicas": [{"name": "a"}, {"name": "b", "device": "cpu"}]},
    }
    devices = [of_replica(index, data=data).replica.device for index in (0, 1)]
    assert devices == ["cuda:1", "cpu"]
    assert of_replica(0).replica.device == "cpu"


@pytest.mark.parametrize("device", ["", "gpu", "cuda", "cuda:-1", "cuda:01", "mps", "cpu:0"])
def test_device_of_another_form_is_refused_with_the_name_of_the_replica(device):
    data = {"cluster": {"replicas": [{"name": "a", "device": device}]}}
    message = f"cluster.replicas: a: replica.device is '{device}'; allowed is 'cpu', or 'cuda:N'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        of_replica(0, data=data)


def test_jobs_are_shared_ones_own_ones_and_named_ones_with_a_seed_per_replica():
    home = of_replica(0, named_jobs=["more=medquad"]).training.jobs
    work = of_replica(1, named_jobs=["more=medquad"]).training.jobs
    assert [(job.adapter, job.data, job.seed) for job in home] == [
        ("shared", "snips", 11), ("own", "clinc150", 10), ("more", "medquad", 10),
    ]  # fmt: skip
    assert [(job.adapter, job.data, job.seed) for job in work] == [
        ("shared", "snips", 12), ("more", "medquad", 11),
    ]  # fmt: skip


def test_two_jobs_for_one_adapter_are_refused_with_the_name_of_the_replica():
    with pytest.raises(ConfigError, match="cluster.replicas: home: .*'own' appears more than once"):
        of_replica(0, named_jobs=["own=medquad"])


def test_configuration_of_a_replica_survives_its_file(tmp_path):
    path = tmp_path / "home.yaml"
    path.write_text(resolved_config(of_replica(0)))
    assert load_config(path) == of_replica(0)


def test_configuration_of_a_cluster_survives_its_file(tmp_path):
    config = read_config(CollmConfig, CLUSTER)
    path = tmp_path / "front.yaml"
    path.write_text(resolved_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cluster.replicas=[{name: a.b}]", "cluster.replicas[0].name is 'a.b'"),
        ("cluster.replicas=[{}]", "cluster.replicas[0].name is required"),
        ("cluster.replicas=[{name: a},{name: a}]", "name 'a' appears more than once"),
        (
            "cluster.replicas=[{name: a, jobs: [{adapter: x}]}]",
            "replicas[0].jobs[0].data is required",
        ),
    ],
)
def test_wrong_replica_setting_is_named_by_its_place(setting, words):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [setting])
    assert words in str(caught.value)


def test_shipped_preset_gives_each_replica_its_own_data():
    config = load_config(PRESET)
    replicas = [replica_config(config, index, named_jobs=[], num_cores=2) for index in (0, 1)]
    assert [own.replica.threads for own in replicas] == [1, 1]
    assert [job.data for own in replicas for job in own.training.jobs] == ["clinc150", "snips"]
    adapters = {job.adapter for own in replicas for job in own.training.jobs}
    assert adapters == {entry.adapter for entry in config.cluster.rounds}


def test_replicas_learn_the_adapters_of_rounds_together():
    data = CLUSTER | {"cluster": CLUSTER["cluster"] | {"rounds": [{"adapter": "shared"}]}}
    assert of_replica(0, data=data).training.rounds == ("shared",)
    assert of_replica(0).training.rounds == ()


def test_a_round_s_adapter_must_fit_the_slots():
    rounds = [{"adapter": "shared", "rank": 64}]
    data = CLUSTER | {"cluster": CLUSTER["cluster"] | {"rounds": rounds}}
    with pytest.raises(ConfigError, match=r"lora\.max_rank"):
        of_replica(0, data=data)
