from pathlib import Path

import pytest
import yaml

from collm.cli.config_file import load_config
from collm.cli.demo_session import prepare_folder
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_sites import cluster_settings, deal_sites, write_samples
from collm.workload.samples import load_samples


@pytest.fixture
def settings(tmp_path) -> DemoSettings:
    return DemoSettings(
        minutes=2, requests_per_s=1, seed=7, out=tmp_path / "out", port=0, model="tiny",
        budget="latency", num_replicas=2,
    )  # fmt: skip


def test_two_sites_share_no_domain_and_have_all_ten():
    first, second = deal_sites(2)
    assert (first.name, second.name) == ("r0", "r1")
    assert len(first.domains) == len(second.domains) == 5
    assert not first.domains & second.domains
    for site in (first, second):
        assert {sample.group for sample in site.samples} == site.domains | {"oos"}


def test_each_text_is_in_the_folder_of_its_replica_alone(settings):
    sites = deal_sites(2)
    write_samples(settings, sites)
    (first, second) = (load_samples(settings.data_dir / f"{s.name}/samples.jsonl") for s in sites)
    assert [sample.messages for sample in first] == [s.messages for s in sites[0].samples]
    assert {sample.group for sample in second} == sites[1].domains | {"oos"}
    written = [path for path in settings.out.rglob("*") if path.is_file()]
    assert len(written) == 2


def test_written_configuration_is_what_the_cluster_reads(settings):
    sites = deal_sites(2)
    path = prepare_folder(settings, cluster_settings(settings, sites))
    config = load_config(path)
    assert config.replica.threads == 1
    assert [entry.name for entry in config.cluster.replicas] == ["r0", "r1"]
    for entry in config.cluster.replicas:
        (job,) = entry.jobs
        assert job.adapter == "clinc"
        assert Path(job.data) == settings.data_dir / entry.name / "samples.jsonl"
    (rounds,) = config.cluster.rounds
    assert (rounds.adapter, rounds.strategy, rounds.rank) == ("clinc", "svd", 16)
    assert yaml.safe_load(path.read_text())["seed"] == 7
