"""From a manifest to a pipeline's parts."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.runtime.foreign_package import install_package
from tests.runtime.manifest_text import manifests

from levada.errors import InvalidManifest, NeedsOperator
from levada.runtime.config import TableConfig
from levada.runtime.host.assembly import (
    open_store,
    pipeline_config,
)
from levada.runtime.host.plugins import destination_class, load_destination
from levada.runtime.host.secret_folder import secret_folder
from levada.stores import MemoryStore, PostgresStore
from levada.values import OnUnrepresentable, QualifiedTable, TableMode

ORDERS, ITEMS = QualifiedTable("public", "orders"), QualifiedTable("public", "items")


def test_what_is_not_said_has_the_manifests_defaults(tmp_path: Path) -> None:
    """Names are derived, staging is durable in the work folder, retries count tries."""
    config = pipeline_config(manifests(), work_dir=tmp_path)
    assert (config.name, config.slot.name, config.publication.name) == ("shop-eu", "levada_shop_eu", "levada_shop_eu")
    assert (config.staging.uri, config.staging.durable) == (str(tmp_path / "staging"), True)
    assert config.publication.managed
    assert not config.slot.failover
    assert not config.slot.resync_when_lost
    assert (config.batch_fill_s, config.batch_bytes, config.freshness_s) == (1.0, 64 << 20, 10.0)
    assert (config.retries.max_attempts, config.retries.delay_s) == (6, 10.0)
    assert config.on_unrepresentable is OnUnrepresentable.ERROR
    assert config.source.credentials is None
    assert not list(tmp_path.iterdir())


def test_what_is_said_is_taken(tmp_path: Path) -> None:
    """Every setting of the manifest that concerns the engine reaches its configuration."""
    config = pipeline_config(
        manifests(
            source={
                "port": 6432,
                "slot": {"name": "s", "failover": True, "onLost": "Resync"},
                "publication": {"name": "p", "management": "External"},
                "heartbeatSeconds": 0,
                "tls": {"mode": "Require"},
            },
            copy={"maxConcurrentTables": 2, "connectionsPerTable": 3},
            apply={"maxConcurrentTables": 5},
            batch={"maxFillMs": 250, "maxBytes": "1Mi"},
            freshnessSeconds=3,
            onUnrepresentable="Text",
            staging={"uri": "s3://lake/staging"},
            retries={"maxAttempts": 0, "delaySeconds": 1, "maxDelaySeconds": 2},
            health={"progressDeadlineSeconds": 60},
        ),
        work_dir=tmp_path,
    )
    assert (config.source.port, config.source.sslmode, config.heartbeat_s) == (6432, "require", 0.0)
    assert (config.slot.name, config.slot.failover, config.slot.resync_when_lost) == ("s", True, True)
    assert (config.publication.name, config.publication.managed) == ("p", False)
    assert (config.copy_tables, config.copy_connections, config.apply_threads) == (2, 3, 5)
    assert (config.batch_fill_s, config.batch_bytes, config.freshness_s) == (0.25, 1 << 20, 3.0)
    assert config.on_unrepresentable is OnUnrepresentable.TEXT
    assert (config.staging.uri, config.staging.durable) == ("s3://lake/staging", None)
    assert (config.retries.max_attempts, config.retries.delay_s, config.retries.max_delay_s) == (1, 1.0, 2.0)
    assert config.progress_deadline_s == 60.0


def test_a_volume_is_durable_where_scratch_is_not(tmp_path: Path) -> None:
    """The claim is mounted where scratch would be."""
    for staging, durable in (({"volumeClaim": {"size": "1Gi"}}, True), ({"scratch": True}, False)):
        config = pipeline_config(manifests(staging=staging), work_dir=tmp_path)
        assert (config.staging.uri, config.staging.durable) == (str(tmp_path / "staging"), durable)


def test_a_change_of_the_destinations_resync_fields_copies_again(tmp_path: Path) -> None:
    """The text that is stored with each copy has the values of the Resync fields, except for the mode."""
    catalog = {"type": "Hadoop", "warehouse": "/lake"}
    destination = {"iceberg": {"catalog": catalog, "namespace": "shop", "mode": "Changelog"}}
    given = manifests(destination=destination, onUnrepresentable="Text")
    assert pipeline_config(given, work_dir=tmp_path).copies_depend_on == "Text shop"
    assert pipeline_config(manifests(), work_dir=tmp_path).copies_depend_on == "Error {schema}"
    custom = manifests(destination={"custom": {"type": "theirs"}})
    assert pipeline_config(custom, work_dir=tmp_path).copies_depend_on == "Error"
    assert custom.pipeline.spec.destination.mode is TableMode.UPSERT


def test_tables_columns_modes_and_names(tmp_path: Path) -> None:
    """Selectors choose tables, and TableSyncs have the differences of each. The store's own tables are never chosen."""
    given = manifests(
        {
            "table": {"name": "orders"},
            "mode": "Changelog",
            "destinationTable": "orders_log",
            "columns": {"exclude": ["note"]},
        },
        {"table": {"name": "items"}, "suspend": True},
    )
    config = pipeline_config(given, work_dir=tmp_path)
    assert config.selects(ORDERS)
    assert not config.selects(QualifiedTable("public", "tmp_1"))
    assert not config.selects(QualifiedTable("levada", "documents"))
    assert config.table(ORDERS) == TableConfig(
        mode=TableMode.CHANGELOG, destination_table="orders_log", excluded_columns=frozenset({"note"})
    )
    assert config.table(ITEMS) == TableConfig(suspended=True)
    assert config.table(QualifiedTable("public", "other")) == TableConfig()


def test_changelogs_are_copied_again_only_if_their_own_settings_say_so(tmp_path: Path) -> None:
    """A copy removes the history of a changelog, which the default of all tables must not do."""
    changelog = {"table": {"name": "orders"}, "mode": "Changelog"}
    other = QualifiedTable("public", "other")
    for all_tables, own, copied in (
        ("Resync", {}, (False, True)),
        ("Resync", {"onUnstreamable": "Resync"}, (True, True)),
        ("Hold", {"onUnstreamable": "Resync"}, (True, False)),
        ("Hold", {}, (False, False)),
    ):
        tables = {"include": [{"schema": "public"}], "onUnstreamable": all_tables}
        config = pipeline_config(manifests(changelog | own, tables=tables), work_dir=tmp_path)
        assert (config.table(ORDERS).resyncs_by_itself, config.table(other).resyncs_by_itself) == copied


def test_secrets_are_folders_with_files(tmp_path: Path) -> None:
    """Credentials are a path that each connect reads. The certificate authority is one file of its Secret."""
    for file in ("cdc/username", "cdc/password", "ca/ca.crt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("x")
    source = {
        "credentialsSecretRef": {"name": "cdc"},
        "tls": {"mode": "VerifyFull", "caSecretRef": {"name": "ca", "key": "ca.crt"}},
    }
    config = pipeline_config(manifests(source=source), secrets=tmp_path, work_dir=tmp_path)
    assert config.source.credentials == tmp_path / "cdc"
    assert config.source.sslrootcert == tmp_path / "ca" / "ca.crt"
    assert config.source.sslmode == "verify-full"


def test_hint_in_a_pod_is_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod the hint names the Secret and its keys, not the folder that only the pod has."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("LEVADA_NAMESPACE", "data")
    # As the kubelet mounts an optional Secret that does not exist.
    (tmp_path / "cdc" / "..2026_11_23_22_00_00.1").mkdir(parents=True)
    (tmp_path / "cdc" / "..data").symlink_to("..2026_11_23_22_00_00.1")
    with pytest.raises(NeedsOperator) as missing:
        secret_folder(tmp_path, "cdc", "username", "password")
    assert missing.value.hint == (
        "kubectl -n data create secret generic cdc --from-literal=username=VALUE --from-literal=password=VALUE"
    )
    (tmp_path / "cdc" / "username").write_text("levada")
    with pytest.raises(NeedsOperator) as lacking:
        secret_folder(tmp_path, "cdc", "username", "password")
    assert lacking.value.hint == """kubectl -n data patch secret cdc -p '{"stringData": {"password": "VALUE"}}'"""


@pytest.mark.parametrize(("made", "named"), [([], "Secret cdc"), (["username"], "Secret cdc has no key password")])
def test_missing_secrets_are_named(tmp_path: Path, made: list[str], named: str) -> None:
    """The folder or the key, and the path to write."""
    for key in made:
        (tmp_path / "cdc").mkdir(exist_ok=True)
        (tmp_path / "cdc" / key).write_text("x")
    given = manifests(source={"credentialsSecretRef": {"name": "cdc"}})
    with pytest.raises(NeedsOperator) as missing:
        pipeline_config(given, secrets=tmp_path, work_dir=tmp_path)
    assert missing.value.code == "secret_missing"
    assert named in missing.value.message
    assert str(tmp_path / "cdc") in missing.value.hint
    with pytest.raises(NeedsOperator, match="--secrets"):
        pipeline_config(given, work_dir=tmp_path)


def test_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's store is the default.

    ConfigMaps without a cluster are an error, and no other store replaces them.
    """
    config = pipeline_config(manifests(), work_dir=tmp_path)
    assert isinstance(open_store(manifests(), config, None), PostgresStore)
    assert isinstance(open_store(manifests(store={"memory": {}}), config, None), MemoryStore)
    from kubernetes.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NeedsOperator) as nowhere:
        open_store(manifests(store={"configMap": {}}), config, None)
    assert nowhere.value.code == "no_cluster"


def test_copies_are_left_to_others_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine itself copies a Dedicated table, unless an operator makes such copies and the store can be shared."""
    sync = {"table": {"name": "orders"}, "copy": {"driver": "Dedicated"}}
    dedicated = {}
    for told in ("", "1"):
        monkeypatch.setenv("LEVADA_DEDICATED_COPIES", told)
        for store in ("postgres", "memory"):
            config = pipeline_config(manifests(sync, store={store: {}}), work_dir=tmp_path)
            dedicated[told, store] = config.table(ORDERS).dedicated_copy
            assert not config.table(ITEMS).dedicated_copy
    assert [k for k, v in dedicated.items() if v] == [("1", "postgres")]


def test_destinations_are_found_by_their_entry_point() -> None:
    """A package adds a destination without a change of Levada.

    The error for an unknown name lists the installed ones.
    """
    assert destination_class(manifests()).name == "iceberg"
    with pytest.raises(InvalidManifest) as unknown:
        destination_class(manifests(destination={"custom": {"type": "nowhere"}}))
    assert unknown.value.code == "unknown_destination"
    assert "iceberg" in unknown.value.message


def test_an_unknown_store_lists_what_is_installed(tmp_path: Path) -> None:
    """The message names the field and the installed stores, the hint the entry-point group that lacks one."""
    config = pipeline_config(manifests(), work_dir=tmp_path)
    with pytest.raises(InvalidManifest) as unknown:
        open_store(manifests(store={"custom": {"type": "nowhere"}}), config, None)
    assert unknown.value.code == "unknown_store"
    assert unknown.value.message.startswith("spec.store.custom.type: no store 'nowhere' is installed. Installed: ")
    assert "levada.stores" in unknown.value.hint


@pytest.mark.parametrize(
    ("module", "words"), [("raise OSError('no driver')", "OSError: no driver"), ("made = 5", "is not a subclass")]
)
def test_a_broken_destination_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, words: str
) -> None:
    """An exception in the import of a package is reported with the package and its entry point."""
    install_package(monkeypatch, tmp_path, "their_module", "made", module)
    [found] = [e for e in entry_points(group="levada.destinations") if e.name == "theirs"]
    with pytest.raises(NeedsOperator) as raised:
        load_destination(found)
    assert raised.value.code == "destination_broken"
    assert "entry point theirs = their_module:made of package their-package" in raised.value.message
    assert words in raised.value.message
