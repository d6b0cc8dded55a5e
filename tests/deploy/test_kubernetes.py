"""The overlays of deploy/kubernetes, built by kustomize and checked by their schemas."""

import json
import os
import re
import subprocess
import tomllib

import pytest
import yaml
from conftest import DEPLOY, HERE, PYTHON_BIN, ROOT, load, peer, rules, run


@pytest.fixture(scope="module", params=["development", "production", "cluster"])
def objects(request, kubectl, tmp_path_factory):
    """The objects of an overlay, by kind and name, and the file with them. A kind alone is the
    service's own object."""
    path = tmp_path_factory.mktemp("kubernetes") / f"{request.param}.yaml"
    text = run(kubectl, "kustomize", DEPLOY / "kubernetes/overlays" / request.param)
    # Deprecations are reported as comments.
    assert "Warning" not in text, text
    path.write_text(text)
    found = {}
    for thing in yaml.safe_load_all(path.read_text()):
        kind, name = thing["kind"], thing["metadata"]["name"]
        found[f"{kind}/{name}"] = thing
        if re.fullmatch(r"unstuck(-[a-z0-9]{10})?", name):
            found[kind] = thing
    return request.param, path, found


# What the cluster gives a container by reference.
REFERENCES = {
    "UNSTUCK__CLUSTER__NAME": "unstuck-0",
    "UNSTUCK__CLUSTER__REDIS": "redis://unstuck:replace-this-password@valkey:6379",
}


def variables_of(container):
    """The variables of a container, as the kubelet sets them."""
    found = {}
    for variable in container.get("env", []):
        name = variable["name"]
        value = variable["value"] if "value" in variable else REFERENCES[name]
        # A reference to an earlier variable.
        found[name] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


def test_the_overlays_are_valid(objects):
    name, path, found = objects
    said = run(PYTHON_BIN / "kubernetes-validate", "--strict", path)
    unknown = set(re.findall(r"find schema for kind (\w+)", said))
    assert unknown == (set() if name == "development" else {"PrometheusRule", "ServiceMonitor"})
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(found)


def test_the_pods_are_restricted(objects):
    name, _, found = objects
    assert found["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    user = re.search(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[1]
    sets = [(found["StatefulSet"], int(user))]
    if name == "cluster":
        # The user of the image of Valkey.
        sets.append((found["Deployment/valkey"], 999))
    for one, user in sets:
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        of_pod = {"runAsNonRoot": True, "runAsUser": user, "seccompProfile": {"type": "RuntimeDefault"}}
        assert of_pod.items() <= pod["securityContext"].items()
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False


def test_the_pods_have_probes_selectors_and_files(objects):
    name, _, found = objects
    stateful = found["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name == "development":
            assert container[probe]["grpc"]["port"] == ports["grpc"]
        else:
            # The kubelet's gRPC probes do not support TLS.
            page = container[probe]["httpGet"]
            assert page["port"] in ports and page["scheme"] == "HTTPS" and "grpc" not in container[probe]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful.get("replicas") == (None if name == "cluster" else 1)
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == {"unstuck-client": "true"}
    claims = {claim["metadata"]["name"] for claim in stateful.get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert volumes | claims == {mount["name"] for mount in container["volumeMounts"]}
    (data,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    settings = tomllib.loads(found["ConfigMap"]["data"]["unstuck.toml"])
    directory = settings["store"]["dir"]
    assert directory.startswith(f"{data}/")
    variables = variables_of(container)
    key = variables.get("UNSTUCK__STORE__KEY_FILE", settings["store"]["key_file"])
    (holder,) = [mount["name"] for mount in container["volumeMounts"] if key.startswith(f"{mount['mountPath']}/")]
    assert not key.startswith(f"{directory}/") and holder == ("data" if name == "development" else "key")
    secrets = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert all(secrets[secret]["defaultMode"] == 0o400 for secret in ("key", "cluster") if secret in secrets)
    assert {"key", "cluster"} & set(secrets) == {"development": set(), "production": {"key"}, "cluster": {"key", "cluster"}}[name]
    (config,) = [volume for volume in pod["volumes"] if volume["name"] == "config"]
    assert config["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]


def test_the_configuration_of_the_pods_is_valid(objects, tmp_path):
    _, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = create_secret_files(variables_of(container), tmp_path)
    insecure = [arg for arg in container["args"] if arg == "--insecure"]
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
        check = [peer.BINARY, "config", "check", "--config", tmp_path / name, *insecure]
        run(*check, cwd=tmp_path, env=os.environ | variables)


def create_secret_files(variables, folder):
    """Creates the files that a pod gets from secrets, and returns the variables with their paths."""
    ours = {
        variable: str(folder / os.path.basename(value)) if value.startswith("/") else value
        for variable, value in variables.items()
    }
    if ours:
        cert, key = ours["UNSTUCK__TLS__CERT"], ours["UNSTUCK__TLS__KEY"]
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", "/CN=unstuck", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert)
        line = f'"ci" = {{ role = "broker", hash = "blake3:{"0" * 64}" }}\n'
        (folder / os.path.basename(ours["UNSTUCK__AUTH__TOKENS"])).write_text(line)
    if secret := ours.get("UNSTUCK__CLUSTER__SECRET_FILE"):
        os.close(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600))
        with open(secret, "w") as file:
            file.write("0" * 64)
    return ours


def is_allowed_to_listen(args, variables):
    """Listening for other machines needs tokens and TLS, or `--insecure`."""
    secured = {"UNSTUCK__AUTH__TOKENS", "UNSTUCK__TLS__CERT", "UNSTUCK__TLS__KEY"} <= set(variables)
    return secured != ("--insecure" in args)


def test_listening_for_other_machines_needs_tokens_and_tls_or_insecure(objects):
    name, _, found = objects
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"] for variable in container.get("env", [])}
    assert is_allowed_to_listen(container["args"], variables)
    assert ("--insecure" in container["args"]) == (name == "development")
    service = load("compose.yaml")["services"]["unstuck"]
    assert is_allowed_to_listen(service["command"], service["environment"])


def operator_errors(*objects):
    """The errors by the schemas of the operator's definitions; empty if valid."""
    command = ["node", "operator.mjs"]
    checked = subprocess.run(command, cwd=HERE, input=json.dumps(objects), capture_output=True, text=True)
    return re.search(r"data/.*|$", checked.stderr)[0] or checked.stderr


def test_the_operator_accepts_the_rules_and_selects_the_service(objects):
    name, _, found = objects
    if name == "development":
        assert "PrometheusRule" not in found
        return
    assert operator_errors(found["PrometheusRule"], found["ServiceMonitor"]) == ""
    wrong = found["ServiceMonitor"] | {"spec": {"selector": {}, "endpoints": [{"port": 50552}]}}
    assert operator_errors(wrong) == "data/spec/endpoints/0/port must be string"
    by_name = lambda rule: rule.get("record") or rule["alert"]
    of_operator = [rule for group in found["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    assert sorted(of_operator, key=by_name) == sorted(rules(), key=by_name)
    (endpoint,) = found["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in found["Service"]["spec"]["ports"]}
    selected = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= found["Service"]["metadata"]["labels"].items()


# Replicas that share sessions


def test_the_replicas_of_a_cluster_have_what_they_share(objects):
    name, _, found = objects
    if name != "cluster":
        assert not [key for key in found if "valkey" in key or "HorizontalPodAutoscaler" in key]
        return
    scaler = found["HorizontalPodAutoscaler"]["spec"]
    assert scaler["minReplicas"] == 3 < scaler["maxReplicas"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "unstuck"}
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    # Brokers get one address for all replicas; the replicas reach each other by name.
    client, own = found["Service/unstuck-client"]["spec"], found["Service"]["spec"]
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert client["selector"] == own["selector"] == labels
    assert own["clusterIP"] == "None" and "clusterIP" not in client
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = variables_of(container)
    ports = {port["name"]: port["port"] for port in own["ports"]}
    service = found["StatefulSet"]["spec"]["serviceName"]
    assert variables["UNSTUCK__CLUSTER__ADVERTISE"] == f"https://unstuck-0.{service}:{ports['grpc']}"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables["SSL_CERT_FILE"] == f"{mounts['tls']}/ca.crt"
    references = {variable["name"]: variable.get("valueFrom") for variable in container["env"]}
    assert references["UNSTUCK__CLUSTER__REDIS"] == {"secretKeyRef": {"name": "unstuck-redis", "key": "url"}}
    # The set scales without the number of the file, and a node holds one replica if it can.
    (spread,) = found["StatefulSet"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels


def test_the_network_of_a_cluster_is_closed_but_for_what_it_needs(objects):
    name, _, found = objects
    if name != "cluster":
        return
    own = found["NetworkPolicy"]["spec"]
    redis = found["NetworkPolicy/valkey"]["spec"]
    us = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    valkey = found["Deployment/valkey"]["spec"]["template"]["metadata"]["labels"]
    (base, _, _) = [found_in["from"][0].get("podSelector") for found_in in own["ingress"]]
    assert base["matchLabels"] == {"unstuck-client": "true"}
    rules = [(rule["to"][0].get("podSelector", {})["matchLabels"], rule["ports"]) for rule in own["egress"]]
    assert rules[0] == (us, [{"port": "grpc"}]) and rules[1] == (valkey, [{"port": "redis"}])
    assert [port["port"] for port in rules[2][1]] == [53, 53] and len(rules) == 3
    assert redis["podSelector"]["matchLabels"] == valkey and redis["egress"] == []
    (only,) = redis["ingress"]
    assert only["from"] == [{"podSelector": {"matchLabels": us}}] and only["ports"] == [{"port": "redis"}]


def test_the_example_of_valkey_is_configured_as_the_file_of_deploy(objects):
    name, _, found = objects
    if name != "cluster":
        return
    (config,) = [thing for key, thing in found.items() if key.startswith("ConfigMap/valkey-")]
    apart = ("aclfile", "#")
    settings = lambda text: [line for line in text.splitlines() if line and not line.startswith(apart)]
    text = config["data"]["valkey.conf"]
    assert settings(text) == settings((DEPLOY / "cluster/redis.conf").read_text())
    pod = found["Deployment/valkey"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"] == [f"{mounts['config']}/valkey.conf"]
    assert f"aclfile {mounts['users']}/users.acl" in text
    (users,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "users"]
    assert users["secretName"] == "unstuck-redis" and users["items"] == [{"key": "users.acl", "path": "users.acl"}]
