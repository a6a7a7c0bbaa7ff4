"""One conversion in progress: reads a document's sections, gathers our configuration and the notes."""

from collections.abc import Callable, Mapping
from typing import Any

from picker.config import EndpointLabels
from picker.convert.document import KIND, ConversionError, Plugin, list_at, number, plain, read_plugins, table_at
from picker.convert.plugins import COVERED, INDEX_PARAMETERS, KNOWN_KEYS, NOT_CARRIED, SCORERS


class Draft:
    """A conversion in progress. Parameters are taken out as they are read, so that the rest can be named."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.configuration: dict[str, Any] = {}
        self.notes: list[str] = []
        self.plugins = read_plugins(document)

    def read(self) -> None:
        document = self.document
        weights = self._scheduling()
        self._saturation()
        self._metrics()
        self._sections()
        self._leftovers()
        self._weights(weights)
        for key in sorted(map(str, document.keys() - KNOWN_KEYS)):
            self.note(f"{key}: not a key of {KIND}, ignored.")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def set(self, path: str, value: Any) -> None:
        """`set('saturation.waiting_requests', 5)`."""
        *tables, key = path.split(".")
        table = self.configuration
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value

    def set_label(self, table: str, label: str, value: Any) -> None:
        """`set_label('match', 'tier', 'gold')`. Labels have dots, so they are no path."""
        self.configuration.setdefault("endpoint_labels", {}).setdefault(table, {})[label] = value

    # -- scheduling: profiles, scorers, filters, pickers

    def _scheduling(self) -> dict[str, float]:
        """Read the profile in use. Returns the weight of each of our objectives that it names."""
        profiles = list_at(self.document, "schedulingProfiles")
        if not profiles:
            if not self.plugins:  # the peer's own default
                return {"queue": 2.0, "kv": 2.0, "prefix": 3.0}
            references = [{"pluginRef": plugin.name} for plugin in self.plugins.values()]
            return self._profile("default", [r for r in references if self._schedules(r["pluginRef"])])
        chosen = self._choose_profile(profiles)
        return self._profile(str(chosen.get("name", "?")), list_at(chosen, "plugins"))

    def _schedules(self, name: str) -> bool:
        kind = self.plugins[name].type
        return kind in SCORERS or kind.endswith(("-scorer", "-filter", "-picker"))

    def _choose_profile(self, profiles: list[Any]) -> dict[str, Any]:
        tables = [profile for profile in profiles if isinstance(profile, dict)]
        if len(tables) != len(profiles):
            raise ConversionError("schedulingProfiles: every entry must be a table with name and plugins")
        by_name = {str(profile.get("name")): profile for profile in tables}
        chosen = by_name.get("decode") or by_name.get("default") or tables[0]
        for name, profile in by_name.items():
            if profile is not chosen:
                self.note(
                    f"schedulingProfiles {name}: not carried over, one profile serves all requests "
                    f"({chosen.get('name')} was taken)."
                )
                for reference in list_at(profile, "plugins"):
                    self._plugin(reference, f"schedulingProfiles {name}").used = True
        return chosen

    def _profile(self, name: str, references: list[Any]) -> dict[str, float]:
        weights: dict[str, float] = {}
        for reference in references:
            plugin = self._plugin(reference, f"schedulingProfiles {name}")
            plugin.used = True
            if plugin.type in SCORERS:
                objective, remark = SCORERS[plugin.type]
                weight = reference.get("weight")
                weights[objective] = weights.get(objective, 0.0) + number(weight, 1.0, f"weight of {plugin.name}")
                if remark is not None:
                    self.note(f"{plugin.type}: counted in weights.{objective}; {remark}.")
            self._parameters(plugin)
        return weights

    def _parameters(self, plugin: Plugin) -> None:
        reader = READERS.get(plugin.type)
        if reader is not None:
            reader(self, plugin)
        elif plugin.type not in SCORERS:
            self._without_counterpart(plugin)
        self._index_parameters(plugin)
        for key in plugin.parameters:
            self.note(f"{plugin.type}: parameter {key} has no counterpart, not carried over.")
        plugin.parameters.clear()

    def _without_counterpart(self, plugin: Plugin) -> None:
        kind = plugin.type
        if kind in COVERED:
            if COVERED[kind]:
                self.note(f"{kind}: nothing to set, {COVERED[kind]}.")
        elif kind in NOT_CARRIED:
            self.note(f"{kind}: not carried over; {NOT_CARRIED[kind]}.")
            plugin.parameters.clear()
        else:
            self.note(f"{kind}: no counterpart here, not carried over.")
            plugin.parameters.clear()

    def _index_parameters(self, plugin: Plugin) -> None:
        found = [key for key in INDEX_PARAMETERS if plugin.parameters.pop(key, None) is not None]
        if found:
            self.note(
                f"{plugin.type}: {', '.join(found)} not carried over; blocks are 1,024 bytes, prompts count to their "
                "end, and the index sizes itself by the engines' reports (routing.index_oversize)."
            )

    def _weights(self, weights: dict[str, float]) -> None:
        if not weights:
            self.note("schedulingProfiles: no scorer that has a counterpart; the default weights 3:3:2 hold.")
            return
        if weights.get("prefix", 0.0) <= 0:
            self.note(
                "schedulingProfiles: no prefix scorer; costs here are in seconds of prefill and need one, "
                "so the default weights 3:3:2 hold."
            )
            return
        for objective in ("prefix", "queue", "kv"):
            self.set(f"weights.{objective}", plain(weights.get(objective, 0.0)))
        self.note(
            "weights: they multiply estimated seconds here, not scores from 0 to 1; compare with the default 3:3:2 "
            "(`scoring: normalized` keeps the old kind of score, to compare)."
        )

    # -- the rest of the document

    def _saturation(self) -> None:
        flow_control = table_at(self.document, "flowControl")
        detector = table_at(self.document, "saturationDetector") or table_at(flow_control, "saturationDetector")
        flow_control.pop("saturationDetector", None)
        if not detector:
            return
        if "pluginRef" in detector:
            plugin = self._plugin(detector, "saturationDetector")
            plugin.used = True
            self._parameters(plugin)
        else:  # written out, as the first versions had it
            self._parameters(Plugin("saturationDetector", "utilization-detector", dict(detector)))

    def _metrics(self) -> None:
        layer = table_at(self.document, "dataLayer")
        for source in list_at(layer, "sources"):
            plugin = self._plugin(source, "dataLayer.sources")
            plugin.used = True
            self._parameters(plugin)
            for extractor in list_at(source, "extractors"):
                used = self._plugin(extractor, "dataLayer.sources.extractors")
                used.used = True
                self._parameters(used)
        if "discovery" in layer:
            self.note("dataLayer.discovery: not carried over; endpoints come from --pool, --selector or --endpoints.")

    def _sections(self) -> None:
        flow_control = table_at(self.document, "flowControl")
        if flow_control:
            keys = ", ".join(sorted(map(str, flow_control)))
            self.note(
                f"flowControl ({keys}): not carried over; requests do not queue here, those of negative priority "
                "are shed with 429 while every endpoint is saturated."
            )
            for band in list_at(flow_control, "priorityBands"):
                self._mark_references(band)
            self._mark_references(flow_control)
        gates = list_at(self.document, "featureGates")
        if gates:
            self.note(f"featureGates ({', '.join(map(str, gates))}): nothing to switch here.")
        parsers = [table_at(self.document, "parser"), *list_at(table_at(self.document, "requestHandler"), "parsers")]
        for reference in parsers:
            if reference:
                plugin = self._plugin(reference, "parser")
                plugin.used = True
                self._parameters(plugin)

    def _mark_references(self, table: Any) -> None:
        if isinstance(table, dict):
            for key, value in table.items():
                if str(key).endswith("Ref") and isinstance(value, str) and value in self.plugins:
                    self.plugins[value].used = True

    def _leftovers(self) -> None:
        """Plugins that no profile names: producers and handlers work all the same, scorers and filters do not."""
        for plugin in self.plugins.values():
            if plugin.used:
                continue
            if self._schedules(plugin.name):
                self.note(f"{plugin.name} ({plugin.type}): in no scheduling profile, so it was without effect.")
            else:
                self._parameters(plugin)

    def _plugin(self, reference: Any, place: str) -> Plugin:
        name = reference.get("pluginRef") if isinstance(reference, dict) else None
        if not isinstance(name, str):
            raise ConversionError(f"{place}: expected a table with pluginRef, found {reference!r}")
        if name in self.plugins:
            return self.plugins[name]
        if name in SCORERS or name in COVERED or name in NOT_CARRIED:
            # The peer instantiates types that are only referred to.
            return self.plugins.setdefault(name, Plugin(name, name, {}))
        known = ", ".join(sorted(self.plugins)) or "none"
        raise ConversionError(f"{place}: pluginRef {name!r} names no plugin (defined: {known})")


def _read_affinity_filter(draft: Draft, plugin: Plugin) -> None:
    take = plugin.parameters.pop
    threshold = take("affinityThreshold", None)
    if threshold is not None:
        draft.set("threshold", plain(number(threshold, 0.8, "affinityThreshold")))
    probability = take("explorationProbability", None)
    if probability is not None:
        draft.set("epsilon", plain(number(probability, 0.01, "explorationProbability")))
    if take("maxTTFTPenaltyMs", None) is not None:
        draft.note(
            f"{plugin.type}: maxTTFTPenaltyMs not carried over; a cached endpoint is left when it costs more than "
            "routing.affinity_break times the work that its cache saves."
        )


def _read_max_score_picker(draft: Draft, plugin: Plugin) -> None:
    wanted = plugin.parameters.pop("maxNumOfEndpoints", None)
    if wanted is None:
        return
    length = int(number(wanted, 1.0, "maxNumOfEndpoints"))
    if length > 16:
        draft.note(f"{plugin.type}: maxNumOfEndpoints {length} became 16, the longest fallback list.")
        length = 16
    if length > 1:
        draft.set("destinations_max", length)
        draft.note("destinations_max: a list needs a proxy that takes one (override_host); ORIGINAL_DST answers 503.")


def _read_utilization_detector(draft: Draft, plugin: Plugin) -> None:
    take = plugin.parameters.pop
    depth = take("queueDepthThreshold", None)
    if depth is not None:
        draft.set("saturation.waiting_requests", int(number(depth, 5.0, "queueDepthThreshold")))
    usage = take("kvCacheUtilThreshold", None)
    if usage is not None:
        draft.set("saturation.kv_cache_utilization", plain(number(usage, 0.8, "kvCacheUtilThreshold")))
    if take("metricsStalenessThreshold", None) is not None:
        draft.note(
            f"{plugin.type}: metricsStalenessThreshold not carried over; engines are read once a second here, "
            "and a reading counts until engine_metrics.stale_seconds."
        )
    draft.note(
        f"{plugin.type}: here the pool is saturated when every endpoint is, not on average, "
        "and an endpoint that is not known is not full."
    )


def _read_metrics_source(draft: Draft, plugin: Plugin) -> None:
    take = plugin.parameters.pop
    scheme = take("scheme", None)
    path = take("path", None)
    skip = take("insecureSkipVerify", None)
    if scheme not in (None, "http"):
        draft.set("engine_metrics.scheme", scheme)
    if path not in (None, "/metrics"):
        draft.set("engine_metrics.path", path)
    if scheme == "https" and skip is not False:
        draft.set("engine_metrics.insecure_skip_verify", True)
        if skip is None:
            draft.note(f"{plugin.type}: insecureSkipVerify was true by default; it is false here unless configured.")


def _read_core_extractor(draft: Draft, plugin: Plugin) -> None:
    if plugin.parameters:
        draft.note(
            f"{plugin.type}: {', '.join(sorted(map(str, plugin.parameters)))} not carried over; engines are recognised "
            "by what their metrics pages show (engine_metrics.engine overrides)."
        )
        plugin.parameters.clear()


def _read_label_selector(draft: Draft, plugin: Plugin) -> None:
    """A Kubernetes LabelSelector. One of several values, or a label's presence, cannot be asked for here."""
    labels = table_at(plugin.parameters, "matchLabels")
    plugin.parameters.pop("matchLabels", None)
    for label, value in labels.items():
        draft.set_label("match", str(label), str(value))
    for wanted in list_at(plugin.parameters, "matchExpressions"):
        key, values = str(wanted.get("key")), [str(each) for each in list_at(wanted, "values")]
        if wanted.get("operator") == "NotIn":
            draft.set_label("not_in", key, values)
        elif wanted.get("operator") == "In" and len(values) == 1:
            draft.set_label("match", key, values[0])
        else:
            draft.note(f"{plugin.type}: {key} {wanted.get('operator')} has no counterpart in endpoint_labels.")
    plugin.parameters.pop("matchExpressions", None)
    if "not_in" in draft.configuration.get("endpoint_labels", {}):
        for label, refused in EndpointLabels().not_in.items():
            draft.set_label("not_in", label, draft.configuration["endpoint_labels"]["not_in"].get(label, refused))


def _read_precise_index(draft: Draft, plugin: Plugin) -> None:
    """Theirs subscribes where it is told; ours asks the engines first."""
    if plugin.type in COVERED:
        draft.note(f"{plugin.type}: nothing to set, {COVERED[plugin.type]}.")
    events = table_at(plugin.parameters, "kvEventsConfig")
    plugin.parameters.pop("kvEventsConfig", None)
    port = table_at(events, "podDiscoveryConfig").get("socketPort")
    endpoint = events.get("zmqEndpoint")
    others = [f"kv_events.enabled: true and kv_events.port: {5557 if port is None else port}"]
    if endpoint is not None:
        others.append(f"kv_events.listen: {endpoint} where engines connect to the picker")
    draft.note(
        f"{plugin.type}: engines that answer GET /kv_event_sources are followed by themselves (kv_events.enabled: "
        f"auto); for others set {', or '.join(others)}."
    )


READERS: Mapping[str, Callable[[Draft, Plugin], None]] = {
    "precise-prefix-cache-scorer": _read_precise_index,
    "precise-prefix-cache-producer": _read_precise_index,
    "prefix-cache-affinity-filter": _read_affinity_filter,
    "max-score-picker": _read_max_score_picker,
    "utilization-detector": _read_utilization_detector,
    "metrics-data-source": _read_metrics_source,
    "core-metrics-extractor": _read_core_extractor,
    "label-selector-filter": _read_label_selector,
    "by-label-selector": _read_label_selector,
}
