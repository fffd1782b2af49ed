"""The files in `deploy/`: compose file, systemd units and Helm chart.

The tests run the real tools where they are installed: `docker compose config`, `systemd-analyze`, `caddy`, `helm`. The
checks of schemas, settings and commands always run. `tests/acceptance/test_deploy_topology.py` starts the processes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for
from typer.testing import CliRunner

from breadcrumbs.cli.app import app
from breadcrumbs.runtime.settings.settings import Settings, load_settings
from tests.acceptance.test_project_files import fences, interpolate
from tests.support.servers import Server, redis_binary

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
SYSTEMD = DEPLOY / "systemd"
CHART = DEPLOY / "helm" / "breadcrumbs"
OUR_SERVICES = ("api", "context-builder", "agent-runner")
REQUIRED = {"BREADCRUMBS_SITE": "chat.example.org", "BREADCRUMBS_TLS": "internal"}


class UniqueKeys(yaml.SafeLoader):
    """YAML loader that refuses a key that one mapping has twice. A key may override a merged one (`<<`)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"duplicate key: {keys}"
        return super().construct_mapping(node, deep)


def tool(name: str) -> str:
    """Return the path of a program. Skip the test without it."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, **options)


def check_command(arguments: list[str]) -> None:
    """Fail unless `crumb` has this command with these options."""
    wide = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [arguments[0], "--help"], prog_name="crumb", env=wide)
    assert result.exit_code == 0, arguments
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", result.output), f"crumb {arguments[0]} {option}"


def check_variables(names: Iterator[str]) -> None:
    """Fail if a variable with the prefix of the settings is not a setting."""
    known = {f"CRUMB_{field.upper()}" for field in Settings.model_fields} | {"CRUMB_CONFIG"}
    assert {name for name in names if name.startswith("CRUMB_")} <= known


# --- The folder ------------------------------------------------------------------------------------------


def test_the_readme_mentions_every_file() -> None:
    text = (DEPLOY / "README.md").read_text("utf-8")
    tracked = run("git", "ls-files", "deploy", cwd=ROOT).stdout.split()
    if not tracked:
        pytest.skip("not a git repository")
    for file in (Path(name) for name in tracked if name != "deploy/README.md"):
        below = file.relative_to("deploy")
        named = {str(parent) + "/" for parent in below.parents} | {str(below)}
        assert any(f"`{name}`" in text for name in named), below


def test_no_file_contains_a_password_or_uses_a_moving_tag() -> None:
    for file in DEPLOY.rglob("*"):
        if not file.is_file() or file.suffix == ".json" or "secrets" in file.parts:
            continue
        text = file.read_text("utf-8")
        assert not re.search(r"(?i)password[ \t]*[:=][ \t]*[\"']?[a-z0-9]{4,}", text), file
        assert ":latest" not in text, file


# --- Compose ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.load((COMPOSE / "compose.yaml").read_text("utf-8"), UniqueKeys)
    return document


def test_the_compose_file_matches_the_schema_of_compose(compose: dict[str, Any]) -> None:
    file = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(file.read_text("utf-8"))
    errors = list(validator_for(schema)(schema).iter_errors(json.loads(json.dumps(compose))))
    assert errors == []


def test_docker_compose_accepts_the_file() -> None:
    docker = tool("docker")
    if run(docker, "compose", "version").returncode != 0:
        pytest.skip("docker has no compose plugin")
    command = (docker, "compose", "--file", "compose.yaml", "config", "--quiet")
    ended = run(*command, cwd=COMPOSE, env=os.environ | REQUIRED)
    assert ended.returncode == 0, ended.stderr
    without = run(*command, cwd=COMPOSE, env=os.environ | dict.fromkeys(REQUIRED, ""))
    assert without.returncode != 0 and "BREADCRUMBS_" in without.stderr


def test_without_a_site_compose_fails_with_advice(compose: dict[str, Any]) -> None:
    for name in REQUIRED:
        with pytest.raises(LookupError, match=rf"{name} is missing a value: set it to .* \.env"):
            interpolate(compose, {**REQUIRED, name: ""})


def test_containers_are_hardened_and_limited(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert "healthcheck" in service or name == "redis-exporter", name
        assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "proxy" else []), name
        for secret in service.get("secrets", ()):
            assert secret in compose["secrets"], name


def test_only_the_proxy_is_published_and_redis_has_no_way_out(compose: dict[str, Any]) -> None:
    published = {
        name: service["ports"] for name, service in compose["services"].items() if "ports" in service
    }
    assert published == {"proxy": ["80:80", "443:443"], "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]}
    assert compose["networks"]["store"]["internal"] is True
    assert compose["services"]["redis"]["networks"] == ["store"]


def test_model_keys_reach_only_the_runners(compose: dict[str, Any]) -> None:
    assert [name for name, service in compose["services"].items() if "env_file" in service] == [
        "agent-runner"
    ]


def test_every_mounted_file_exists(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), (name, source)
                assert volume.endswith(":ro"), (name, volume)
            else:
                assert source in compose["volumes"], (name, source)


def test_the_commands_and_variables_of_our_services_exist(compose: dict[str, Any]) -> None:
    for name in OUR_SERVICES:
        check_command(compose["services"][name]["command"])
        check_variables(compose["services"][name].get("environment", {}))


def test_our_services_share_a_volume_that_they_may_write_to(compose: dict[str, Any]) -> None:
    for name in OUR_SERVICES:
        folder = compose["services"][name]["environment"]["CRUMB_DATA"]
        assert f"state:{folder}" in compose["services"][name]["volumes"]
        # A new volume gets the owner of the folder in the image.
        assert f"install --directory --owner=crumb --mode=0700 {folder}" in (ROOT / "Dockerfile").read_text()


def test_prometheus_scrapes_the_ports_of_our_services(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text("utf-8"))
    scraped = {
        found["names"][0]: found["port"]
        for job in config["scrape_configs"]
        for found in job.get("dns_sd_configs", ())
    }
    worker = int(compose["x-worker"]["environment"]["CRUMB_METRICS_PORT"])
    assert scraped == {"api": Settings().port, "context-builder": worker, "agent-runner": worker}
    for name, port in scraped.items():
        assert f"127.0.0.1:{port}/ready" in compose["services"][name]["healthcheck"]["test"][-1]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make-secrets.sh` creates."""
    folder = tmp_path_factory.mktemp("compose")
    shutil.copy(COMPOSE / "make-secrets.sh", folder)
    made = run("sh", str(folder / "make-secrets.sh"))
    assert made.returncode == 0, made.stderr
    (folder / "output").write_text(made.stdout)
    return folder / "secrets"


def test_secrets_are_random_complete_and_made_once(compose: dict[str, Any], secrets: Path) -> None:
    for secret in compose["secrets"].values():
        assert (secrets.parent / secret["file"]).is_file()
    assert secrets.stat().st_mode & 0o077 == 0, "others can read the folder"
    again = run("sh", str(secrets.parent / "make-secrets.sh"))
    assert again.returncode == 1 and "exists" in again.stderr
    fresh = run("sh", str(secrets.parent / "make-secrets.sh"), "other")
    assert fresh.returncode == 0
    for file in ("crumb.toml", "redis-users", "grafana-password", "exporter-passwords"):
        assert (secrets / file).read_text() != (secrets.parent / "other" / file).read_text(), file


def test_the_settings_of_the_secrets_are_valid(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CRUMB_")]:
        monkeypatch.delenv(name)
    settings = load_settings(config=secrets / "crumb.toml", host="0.0.0.0")
    (key,) = settings.api_keys
    printed = re.search(r"API key.*:\s+(\w+)", (secrets.parent / "output").read_text())
    assert printed is not None
    monkeypatch.setenv("CRUMB_API_KEYS", json.dumps([{"key": printed[1], "owner_id": str(key.owner_id)}]))
    (same,) = load_settings(host="0.0.0.0").api_keys
    assert same.digest == key.digest


def test_redis_starts_with_the_config_and_the_users_of_compose(secrets: Path, tmp_path: Path) -> None:
    """The rights in `redis-users` are those of docs/operations.md, and the default user can only ping."""
    binary = redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    (documented,) = (code for info, code in fences("docs/operations.md") if "ACL SETUSER crumb" in code)
    users = (secrets / "redis-users").read_text()
    assert documented.partition(" resetkeys ")[2].strip() in users
    lines = (COMPOSE / "redis.conf").read_text().splitlines()
    options = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert options.pop("dir") == "/data"
    assert options.pop("aclfile") == "/run/secrets/redis-users"
    options = {name: value.strip('"') for name, value in options.items()}
    copied = shutil.copy(secrets / "redis-users", tmp_path / "users.acl")
    password = load_settings(config=secrets / "crumb.toml").redis
    assert password is not None
    found = re.fullmatch(r"redis://crumb:(\w+)@redis:6379/0", password)
    assert found is not None
    server = Server(binary=binary, options={**options, "aclfile": str(copied)})
    server.launch()
    try:
        port = str(server.port)
        cli = shutil.which("redis-cli")
        if cli is None:
            pytest.skip("redis-cli is not installed")

        def ask(*command: str, user: str | None = None, secret: str = "") -> str:
            login = ("--no-auth-warning", "--user", user, "--pass", secret) if user else ()
            return run(cli, "-p", port, *login, *command).stdout.strip()

        for _ in range(200):
            if ask("ping") == "PONG":
                break
        assert ask("ping") == "PONG"
        assert "NOPERM" in ask("get", "bc:x") and "NOPERM" in ask("config", "get", "dir")
        assert ask("set", "bc:x", "1", user="crumb", secret=found[1]) == "OK"
        assert "NOPERM" in ask("set", "other", "1", user="crumb", secret=found[1])
        assert "NOPERM" in ask("flushall", user="crumb", secret=found[1])
        (exporter,) = json.loads((secrets / "exporter-passwords").read_text()).values()
        assert "aof_enabled:1" in ask("info", "persistence", user="exporter", secret=exporter)
        assert "noeviction" in ask("config", "get", "maxmemory-policy", user="exporter", secret=exporter)
        assert "NOPERM" in ask("get", "bc:x", user="exporter", secret=exporter)
    finally:
        server.stop()


# --- Caddy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["internal", "operator@example.org"])
def test_caddy_accepts_the_caddyfile(tls: str) -> None:
    caddy = tool("caddy")
    command = (caddy, "validate", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile")
    ended = run(*command, env=os.environ | {"BREADCRUMBS_SITE": "chat.example.org", "BREADCRUMBS_TLS": tls})
    assert ended.returncode == 0 and "Valid configuration" in ended.stdout + ended.stderr, ended.stderr


# --- systemd ---------------------------------------------------------------------------------------------

UNITS = sorted(SYSTEMD.glob("*.service"))


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Return the lines of a unit: section, name, and the values in order."""
    sections: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            current.setdefault(name, []).append(value)
    return sections


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_drains_and_is_hardened(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["KillSignal"] == ["SIGTERM"] and service["KillMode"] == ["mixed"]
    assert int(service["TimeoutStopSec"][0]) > Settings().lease_seconds + 1
    for name in (
        "DynamicUser",
        "NoNewPrivileges",
        "PrivateTmp",
        "MemoryDenyWriteExecute",
        "RestrictNamespaces",
    ):
        assert service[name] == ["yes"], name
    assert service["CapabilityBoundingSet"] == [""]
    assert unit(path)["Unit"]["After"] == ["network-online.target redis-server.service"]
    check_variables(pair.partition("=")[0] for pair in " ".join(service["Environment"]).split())


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_unit_exists(path: Path) -> None:
    program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"][0])
    assert program == "/opt/breadcrumbs/bin/crumb"
    check_command(arguments)


def test_only_the_runner_gets_model_keys() -> None:
    for path in UNITS:
        files = unit(path)["Service"]["EnvironmentFile"]
        assert ("-/etc/breadcrumbs/models.env" in files) == path.name.startswith("breadcrumbs-runner")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    for path in SYSTEMD.glob("breadcrumbs*"):
        crumb = Path(sys.executable).parent / "crumb"
        text = path.read_text("utf-8").replace("/opt/breadcrumbs/bin/crumb", str(crumb))
        (tmp_path / path.name.replace("@.", "@9111.")).write_text(text)
    for path in tmp_path.iterdir():
        ended = run(analyze, "verify", "--man=no", str(path))
        assert (ended.returncode, ended.stderr) == (0, ""), path.name
        if path.suffix == ".service":
            rated = run(analyze, "security", "--offline=yes", "--threshold=20", str(path))
            assert rated.returncode == 0, rated.stdout.splitlines()[-1]


def test_the_example_settings_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CRUMB_")]:
        monkeypatch.delenv(name)
    assert load_settings(config=SYSTEMD / "crumb.toml.example").redis == "redis://127.0.0.1:6379/0"


# --- Helm ------------------------------------------------------------------------------------------------

MINIMAL = ("--set", "redis.url=redis://redis:6379/0", "--set", "apiKeys.existingSecret=keys")
EVERYTHING: dict[str, Any] = {
    "redis": {"existingSecret": "redis"},
    "apiKeys": {"existingSecret": "keys"},
    "settings": {"model": "openai:gpt-4.1-mini", "lease_seconds": 8, "rate_limits": {"enabled": True}},
    "contextConfig": '{"consumers": []}',
    "agents": {"helper.json": "{}"},
    "ingress": {"enabled": True, "host": "chat.example.org", "className": "nginx", "tlsSecret": "tls"},
    "builder": {"autoscaling": {"enabled": True}},
    "runners": {
        "default": {"autoscaling": {"enabled": True, "maxReplicas": 16}},
        "own": {"replicas": 1, "args": ["--load", "my_agents"], "kind": "my_agents"},
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "redisExporter": True},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {
        "enabled": True,
        "ingressFrom": [{"podSelector": {}}],
        "metricsFrom": [{"podSelector": {}}],
    },
}


@cache
def values_schema() -> Any:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def default_values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.load((CHART / "values.yaml").read_text("utf-8"), UniqueKeys)
    return values


def test_the_values_match_their_schema_and_the_schema_lists_all_of_them() -> None:
    assert list(values_schema().iter_errors(default_values())) == []
    assert list(values_schema().iter_errors(EVERYTHING)) == []
    properties = values_schema().schema["properties"]
    assert properties.keys() - {"global"} == default_values().keys()


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 2},
        {"redis": {"url": "http://redis"}},
        {"api": {"replicas": -1}},
        {"runners": {"Default": {}}},
        {"runners": {"default": {"replica": 2}}},
        {"metricsPort": 80},
        {"agents": {"helper.txt": "{}"}},
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    assert list(values_schema().iter_errors(wrong))


def test_workers_have_time_to_drain_by_default() -> None:
    values = default_values()
    for worker in (values["builder"], values["runnerDefaults"]):
        assert worker["terminationGracePeriodSeconds"] > Settings().lease_seconds + 1
    # The server gives open requests ten seconds after the hook.
    assert values["api"]["terminationGracePeriodSeconds"] > values["api"]["preStopSeconds"] + 10


def test_the_chart_contains_the_monitoring_files() -> None:
    for name, source in (
        ("alerts.yml", "alerts.yml"),
        ("redis-alerts.yml", "redis-alerts.yml"),
        ("dashboard.json", "grafana/dashboards/breadcrumbs.json"),
    ):
        assert (CHART / "files" / name).resolve() == (DEPLOY / "monitoring" / source).resolve()


def rendered(*arguments: str) -> list[dict[str, Any]]:
    """Render the chart with Helm. Fail if Helm refuses it."""
    ended = run(tool("helm"), "template", "prod", str(CHART), *arguments)
    assert ended.returncode == 0, ended.stderr
    return [document for document in yaml.load_all(ended.stdout, UniqueKeys) if document]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    file = tmp_path_factory.mktemp("helm") / "values.yaml"
    file.write_text(yaml.safe_dump(EVERYTHING))
    assert run(tool("helm"), "lint", "--strict", str(CHART), "-f", str(file)).returncode == 0
    return rendered("-f", str(file))


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in documents if found["kind"] == kind}


def test_helm_renders_a_minimal_installation() -> None:
    kinds = sorted(document["kind"] for document in rendered(*MINIMAL))
    assert kinds == sorted(
        ["ConfigMap", "Service", "ServiceAccount", *["Deployment"] * 3, *["PodDisruptionBudget"] * 3]
    )


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (MINIMAL[2:], "set redis.existingSecret, or redis.url"),
        (MINIMAL[:2], "set apiKeys.existingSecret"),
        ((*MINIMAL, "--set", "builder.terminationGracePeriodSeconds=7"), "use more than 7"),
        ((*MINIMAL, "--set", "settings.lease_seconds=60"), "use more than 61"),
        ((*MINIMAL, "--set", "settings.token_secret=x"), "settings.token_secret is a secret"),
        ((*MINIMAL, "--set", "ingress.enabled=true"), "set ingress.host"),
        ((*MINIMAL, "--set", "api.replica=3"), "replica"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_helm_refuses_incomplete_values_with_advice(arguments: tuple[str, ...], advice: str) -> None:
    ended = run(tool("helm"), "template", "prod", str(CHART), *arguments)
    assert ended.returncode != 0 and advice in ended.stderr, ended.stderr


def test_pods_have_probes_rights_and_valid_commands(everything: list[dict[str, Any]]) -> None:
    deployments = of_kind(everything, "Deployment")
    assert deployments.keys() == {
        f"prod-breadcrumbs-{name}" for name in ("api", "builder", "runner-default", "runner-own")
    }
    for name, deployment in deployments.items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        (port,) = container["ports"]
        assert port["containerPort"] == (8081 if name.endswith("-api") else 9101)
        for probe, path in (("livenessProbe", "/health"), ("readinessProbe", "/ready")):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        check_command(container["args"])
        check_variables(variable["name"] for variable in container["env"])
        secrets = {variable["name"] for variable in container["env"] if "secretKeyRef" in str(variable)}
        assert secrets == ({"CRUMB_REDIS", "CRUMB_API_KEYS"} if name.endswith("-api") else {"CRUMB_REDIS"})
        selector = deployment["spec"]["selector"]["matchLabels"].items()
        assert selector <= deployment["spec"]["template"]["metadata"]["labels"].items()
        budget = of_kind(everything, "PodDisruptionBudget")[name]["spec"]
        assert budget["selector"] == deployment["spec"]["selector"] and budget["maxUnavailable"] == 1


def test_the_settings_of_the_chart_are_valid(
    everything: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("CRUMB_")]:
        monkeypatch.delenv(name)
    data = of_kind(everything, "ConfigMap")["prod-breadcrumbs"]["data"]
    (tmp_path / "crumb.toml").write_text(data["crumb.toml"])
    settings = load_settings(config=tmp_path / "crumb.toml")
    assert (settings.lease_seconds, settings.model) == (8, "openai:gpt-4.1-mini")
    assert json.loads(data["context-builder-config.json"]) == {"consumers": []}


def test_the_scaler_asks_for_the_lag_of_its_workers(everything: list[dict[str, Any]]) -> None:
    from tests.support.promql import result_labels
    from tests.unit.project.test_monitoring_files import METRICS

    scalers = of_kind(everything, "ScaledObject")
    assert scalers.keys() == {"prod-breadcrumbs-builder", "prod-breadcrumbs-runner-default"}
    for name, kind in (("builder", "contexts"), ("runner-default", "agents")):
        spec = scalers[f"prod-breadcrumbs-{name}"]["spec"]
        query = spec["triggers"][0]["metadata"]["query"]
        assert result_labels(query, METRICS) == set()
        assert f'kind="{kind}"' in query
        assert spec["scaleTargetRef"] == {"name": f"prod-breadcrumbs-{name}"}
        # KEDA sets the number of pods. Helm must not reset it at each upgrade.
        assert "replicas" not in of_kind(everything, "Deployment")[f"prod-breadcrumbs-{name}"]["spec"]


def test_internal_paths_do_not_reach_the_api_through_the_ingress(everything: list[dict[str, Any]]) -> None:
    (rule,) = of_kind(everything, "Ingress")["prod-breadcrumbs"]["spec"]["rules"]
    backends = {path["path"]: path["backend"]["service"]["name"] for path in rule["http"]["paths"]}
    assert backends.pop("/") == "prod-breadcrumbs-api"
    assert backends == dict.fromkeys(("/metrics", "/health", "/ready"), "prod-breadcrumbs-no-backend")
    pods = [deployment["spec"]["template"] for deployment in of_kind(everything, "Deployment").values()]
    selector = of_kind(everything, "Service")["prod-breadcrumbs-no-backend"]["spec"]["selector"].items()
    assert not any(selector <= pod["metadata"]["labels"].items() for pod in pods)


def test_monitors_select_the_pods_and_their_ports(everything: list[dict[str, Any]]) -> None:
    service = of_kind(everything, "Service")["prod-breadcrumbs-api"]
    monitor = of_kind(everything, "ServiceMonitor")["prod-breadcrumbs-api"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    (rules,) = of_kind(everything, "PrometheusRule").values()
    names = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert "BreadcrumbsNoWorker" in names and "BreadcrumbsRedisDisk" in names
    dashboard = of_kind(everything, "ConfigMap")["prod-breadcrumbs-dashboard"]["data"]["breadcrumbs.json"]
    assert json.loads(dashboard)["uid"] == "breadcrumbs"


@pytest.mark.parametrize("version", ["1.25", "1.31"])
def test_kubernetes_accepts_the_objects(everything: list[dict[str, Any]], version: str) -> None:
    """Needs the package kubernetes-validate, which is too large for every test run."""
    validate = pytest.importorskip("kubernetes_validate")
    custom = {"ScaledObject", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
    for document in everything:
        if document["kind"] not in custom:
            validate.validate(document, version, strict=True)


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
