"""EndpointPickerConfig to ours. Documents are written after the peer's own configuration guide and chart;
expected values come from its documented types and defaults."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from picker import cli, config
from picker.convert import ConversionError, convert

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

CHART_DEFAULT = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
"""

RICH = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: queue-scorer
- name: kv
  type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- name: sticky
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.75, explorationProbability: 0.02, maxTTFTPenaltyMs: 4000}
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
- type: single-profile-handler
- type: approx-prefix-cache-producer
  parameters: {autoTune: true, blockSizeTokens: 64, lruCapacityPerServer: 31250}
- name: detector
  type: utilization-detector
  parameters: {queueDepthThreshold: 7, kvCacheUtilThreshold: 0.9, metricsStalenessThreshold: 200ms, headroom: 0.1}
- name: scrape
  type: metrics-data-source
  parameters: {scheme: https, path: /stats, insecureSkipVerify: false}
- type: core-metrics-extractor
- type: session-affinity-scorer
- type: house-made-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: sticky}
  - {pluginRef: queue-scorer, weight: 3}
  - {pluginRef: kv, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 2.5}
  - {pluginRef: session-affinity-scorer}
  - {pluginRef: house-made-scorer}
  - {pluginRef: max-score-picker}
saturationDetector: {pluginRef: detector}
dataLayer:
  sources:
  - pluginRef: scrape
    extractors: [{pluginRef: core-metrics-extractor}]
flowControl:
  maxBytes: 1000000
  priorityBands: [{priority: 0}]
"""


def noted(text: str, *words: str) -> bool:
    """Whether one note holds all the words."""
    return any(all(word in note for word in words) for note in convert(text).notes)


def test_the_charts_default_keeps_its_weights() -> None:
    assert convert(CHART_DEFAULT).configuration == {"weights": {"prefix": 3, "queue": 2, "kv": 2}}
    assert noted(CHART_DEFAULT, "weights", "seconds")


@pytest.mark.parametrize("version", ["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"])
def test_both_api_groups(version: str) -> None:
    text = CHART_DEFAULT.replace("inference.networking.x-k8s.io/v1alpha1", version)
    assert convert(text).configuration["weights"]["prefix"] == 3


def test_everything_that_has_a_counterpart_is_carried_over() -> None:
    assert convert(RICH).configuration == {
        "threshold": 0.75,
        "epsilon": 0.02,
        "destinations_max": 3,
        "saturation": {"waiting_requests": 7, "kv_cache_utilization": 0.9},
        "engine_metrics": {"scheme": "https", "path": "/stats"},
        "weights": {"prefix": 2.5, "queue": 3, "kv": 2},
    }


@pytest.mark.parametrize(
    "words",
    [
        ("maxTTFTPenaltyMs", "affinity_break"),
        ("destinations_max", "override_host"),
        ("blockSizeTokens", "lruCapacityPerServer", "index"),
        ("metricsStalenessThreshold", "stale_seconds"),
        ("headroom",),
        ("session-affinity-scorer",),
        ("house-made-scorer", "no counterpart"),
        ("flowControl", "maxBytes", "429"),
        ("featureGates", "flowControl"),
    ],
)
def test_everything_else_is_told(words: tuple[str, ...]) -> None:
    assert noted(RICH, *words), convert(RICH).notes


def test_a_result_loads_as_it_is() -> None:
    loaded = config.load(yaml.safe_dump(convert(RICH).configuration))
    assert (loaded.weights.prefix, loaded.saturation.waiting_requests, loaded.destinations_max) == (2.5, 7, 3)


def test_an_empty_document_means_the_peers_default() -> None:
    assert convert(HEAD).configuration == {"weights": {"prefix": 3, "queue": 2, "kv": 2}}


def test_without_profiles_every_plugin_counts_once() -> None:
    text = HEAD + "plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]"
    assert convert(text).configuration == {"weights": {"prefix": 1, "queue": 1, "kv": 0}}


def test_load_scorers_add_up_in_queue() -> None:
    text = HEAD + (
        "plugins: [{type: queue-scorer}, {type: running-requests-size-scorer}, {type: prefix-cache-scorer}]\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: 2},"
        " {pluginRef: running-requests-size-scorer, weight: 1.5}, {pluginRef: prefix-cache-scorer, weight: 3}]}]"
    )
    assert convert(text).configuration["weights"] == {"prefix": 3, "queue": 3.5, "kv": 0}
    assert noted(text, "running-requests-size-scorer", "weights.queue")


def test_kv_events_are_followed_and_their_places_named() -> None:
    """Both forms of the peer's precise index: the scorer of its earlier versions, the producer of today's."""
    text = (
        HEAD
        + "plugins: [{type: precise-prefix-cache-scorer, parameters: {kvEventsConfig: {zmqEndpoint: 'tcp://*:5556'},"
        " indexerConfig: {}}}]\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: precise-prefix-cache-scorer, weight: 2}]}]"
    )
    assert convert(text).configuration["weights"]["prefix"] == 2
    assert noted(text, "precise-prefix-cache-scorer", "weights.prefix", "KV events")
    assert noted(text, "GET /kv_event_sources", "kv_events.port: 5557", "kv_events.listen: tcp://*:5556")
    assert noted(text, "indexerConfig", "no counterpart")
    producer = CHART_DEFAULT.replace(
        "schedulingProfiles:",
        "- type: precise-prefix-cache-producer\n"
        "  parameters: {kvEventsConfig: {discoverPods: true, podDiscoveryConfig: {socketPort: 5559}}}\n"
        "schedulingProfiles:",
    )
    assert noted(producer, "precise-prefix-cache-producer", "KV events")
    assert noted(producer, "kv_events.enabled: true and kv_events.port: 5559")
    for each in (text, producer):
        assert not any("not read" in note or "kvEventsConfig" in note for note in convert(each).notes)


def test_a_profile_without_prefix_scorer_leaves_the_defaults() -> None:
    text = (
        HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]"
    )
    assert convert(text).configuration == {}
    assert noted(text, "no prefix scorer", "3:3:2")


def test_disaggregated_profiles_take_decode() -> None:
    text = HEAD + (
        "plugins: [{type: prefix-cache-scorer}, {type: prefill-filter}, {type: disagg-profile-handler}]\n"
        "schedulingProfiles:\n"
        "- {name: prefill, plugins: [{pluginRef: prefill-filter}]}\n"
        "- {name: decode, plugins: [{pluginRef: prefix-cache-scorer, weight: 4}]}\n"
    )
    assert convert(text).configuration["weights"]["prefix"] == 4
    assert noted(text, "schedulingProfiles prefill", "not carried over")
    assert noted(text, "disagg-profile-handler")


def test_a_scorer_in_no_profile_was_without_effect() -> None:
    text = CHART_DEFAULT.replace("schedulingProfiles:", "- {name: spare, type: queue-scorer}\nschedulingProfiles:")
    assert convert(text).configuration["weights"]["queue"] == 2
    assert noted(text, "spare", "without effect")


def test_saturation_written_out_and_under_flow_control() -> None:
    inline = CHART_DEFAULT + "saturationDetector: {queueDepthThreshold: 9, kvCacheUtilThreshold: 0.7}"
    assert convert(inline).configuration["saturation"] == {"waiting_requests": 9, "kv_cache_utilization": 0.7}
    newer = HEAD + (
        "plugins: [{type: utilization-detector, parameters: {queueDepthThreshold: 4}}]\n"
        "flowControl: {saturationDetector: {pluginRef: utilization-detector}}"
    )
    assert convert(newer).configuration["saturation"] == {"waiting_requests": 4}


def test_https_metrics_keep_the_peers_lax_default() -> None:
    text = HEAD + (
        "plugins: [{type: metrics-data-source, parameters: {scheme: https}}]\n"
        "dataLayer: {sources: [{pluginRef: metrics-data-source}]}"
    )
    assert convert(text).configuration["engine_metrics"] == {"scheme": "https", "insecure_skip_verify": True}
    assert noted(text, "insecureSkipVerify")


def test_a_config_map_is_opened() -> None:
    document = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"default-plugins.yaml": CHART_DEFAULT, "x": "{"}}
    assert convert(yaml.safe_dump(document)).configuration["weights"] == {"prefix": 3, "queue": 2, "kv": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not valid YAML"),
        ("a: !!bool x", "not valid YAML"),
        ("", "found: nothing"),
        ("kind: Deployment", "found: Deployment"),
        ("[1, 2]", "found: list"),
        ("apiVersion: llm-d.ai/v9\nkind: EndpointPickerConfig", "llm-d.ai/v1alpha1"),
        (f"{HEAD}---\n{HEAD}", "one at a time"),
        (HEAD + "plugins: {a: 1}", "plugins: expected a list"),
        (HEAD + "plugins: [{name: x}]", "plugins[0]"),
        (HEAD + "plugins: [{type: a}, {type: a}]", "'a' is taken"),
        (HEAD + "schedulingProfiles: [{name: d, plugins: [{pluginRef: nobody}]}]", "'nobody' names no plugin"),
        (HEAD + "schedulingProfiles: [{name: d, plugins: [queue-scorer]}]", "pluginRef"),
        (CHART_DEFAULT.replace("weight: 3", "weight: heavy"), "weight of prefix-cache-scorer"),
        (CHART_DEFAULT.replace("weight: 3", "weight: .nan"), "weight of prefix-cache-scorer"),
        (RICH.replace("affinityThreshold: 0.75", "affinityThreshold: 1.5"), "threshold"),
        ("a: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_errors_name_the_place(text: str, words: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(text)
    assert words in str(caught.value)


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["queue-scorer", "x", "max-score-picker"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["pluginRef", "plugins", "name", "type", "parameters", "weight", "sources", "fooRef"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
SECTIONS = ["plugins", "schedulingProfiles", "saturationDetector", "dataLayer", "flowControl", "parser", "featureGates"]


@given(st.dictionaries(st.sampled_from(SECTIONS), TREES))
def test_any_document_converts_or_says_why_not(sections: dict[str, object]) -> None:
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", **sections}
    try:
        done = convert(yaml.safe_dump(document))
    except ConversionError as error:
        assert str(error)
    else:
        assert all(note.endswith(".") for note in done.notes)


LABELS = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: label-selector-filter
  parameters:
    matchLabels: {tier: gold}
    matchExpressions:
    - {key: zone, operator: NotIn, values: [b, c]}
    - {key: rack, operator: In, values: [r1]}
    - {key: gpu, operator: Exists}
- type: decode-filter
- type: lora-affinity-scorer
- type: prefix-cache-scorer
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer}
  - {pluginRef: label-selector-filter}
  - {pluginRef: decode-filter}
  - {pluginRef: lora-affinity-scorer}
  - {pluginRef: prefix-cache-scorer}
"""


def test_a_label_selector_is_carried_over_and_keeps_the_rule_for_roles() -> None:
    converted = convert(LABELS)
    assert converted.configuration["endpoint_labels"] == {
        "match": {"tier": "gold", "rack": "r1"},
        "not_in": {"zone": ["b", "c"], "llm-d.ai/role": ["prefill", "encode", "encode-prefill"]},
    }
    assert config.warnings(config.load(yaml.safe_dump(converted.configuration))) == ()
    for words in (("gpu", "Exists"), ("decode-filter", "not_in"), ("lora-affinity-scorer", "weights.lora")):
        assert noted(LABELS, *words), converted.notes


PEER_CHART = Path(__file__).parents[1] / "deploy" / "peer" / "llm-d-router-gateway-ebab687.yaml"


def peers_config_map() -> str:
    """The ConfigMap of the peer's chart, as `kubectl get configmap -o yaml` gives it."""
    documents = (document for document in yaml.safe_load_all(PEER_CHART.read_text()) if document)
    return yaml.safe_dump(next(document for document in documents if document["kind"] == "ConfigMap"))


def test_the_peers_own_config_map_is_read() -> None:
    """It holds two documents; the first is the one that its chart starts its picker with."""
    text = peers_config_map()
    assert convert(text).configuration == {"weights": {"prefix": 3, "queue": 2, "kv": 2}}
    assert noted(text, "payload-agnostic.yaml", "--key")


def test_a_key_names_the_document() -> None:
    text = peers_config_map()
    assert convert(text, "default-plugins.yaml").configuration == convert(text).configuration
    other = convert(text, "payload-agnostic.yaml")
    assert "weights" not in other.configuration
    assert any("session-affinity-scorer" in note for note in other.notes)
    with pytest.raises(ConversionError, match=r"'mine'.*default-plugins.yaml, payload-agnostic.yaml"):
        convert(text, "mine")
    with pytest.raises(ConversionError, match="leave --key out"):
        convert(CHART_DEFAULT, "mine")


def test_a_list_of_config_maps_is_read() -> None:
    """`kubectl get configmaps -o yaml`, without a name."""
    other = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "y"}}
    items = {"apiVersion": "v1", "kind": "List", "items": [other, yaml.safe_load(peers_config_map())]}
    assert convert(yaml.safe_dump(items)).configuration["weights"]["prefix"] == 3


def test_the_command_takes_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cm.yaml"
    path.write_text(peers_config_map())
    assert cli.main(["convert", "--key", "default-plugins.yaml", str(path)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["weights"] == {"prefix": 3, "queue": 2, "kv": 2}
    assert cli.main(["convert", "--key", "mine", str(path)]) == 1
    assert "payload-agnostic.yaml" in capsys.readouterr().err
