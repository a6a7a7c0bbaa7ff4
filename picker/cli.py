"""Commands and exit codes. 0: done; 1: it could not be done, one line says why; 2: wrong usage.

Imports are inside the commands: `picker --version` and a usage error answer at once.
"""

import argparse
import asyncio
import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from picker.kernels import BrokenKernel, build
from picker.version import __version__

if TYPE_CHECKING:
    from picker.edge.kubernetes.source import PoolTarget, SelectorTarget


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except BrokenKernel as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


class _Version(argparse.Action):
    """Looks at the kernels only when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        running = build()
        kernels = f"kernels: {', '.join(running.kernels)}" if running.kernels else "no kernels"
        print(f"picker {__version__} ({running.kind}; {kernels})")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="picker", description="An Envoy ext_proc endpoint picker for LLM inference.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and which build runs")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the picker", allow_abbrev=False)
    serve.set_defaults(run=_serve)
    source = serve.add_argument_group("where the endpoints come from (one of)")
    source.add_argument(
        "--endpoints",
        metavar="HOST:PORT,...",
        help="a fixed list; names are resolved every 30 s, every 2 s while one does not resolve",
    )
    source.add_argument("--endpoints-file", metavar="FILE", type=Path, help="YAML or JSON, read again when it changes")
    source.add_argument("--pool", metavar="NAME", help="an InferencePool of the cluster")
    source.add_argument("--selector", metavar="KEY=VALUE,...", help="pods by label, with --target-port")
    source.add_argument("--target-port", metavar="PORT,...", help="ports of the model servers, with --selector")
    source.add_argument(
        "--namespace",
        metavar="NAME",
        help="of the pool or the pods (default: $NAMESPACE, then the pod's own or the kubeconfig's)",
    )
    ports = serve.add_argument_group("ports (0: any free one, printed at start)")
    ports.add_argument("--host", default="0.0.0.0", help="address to listen on (default %(default)s)")
    ports.add_argument("--grpc-port", type=_port, default=9002, help="ext_proc and health (default %(default)s)")
    ports.add_argument("--grpc-health-port", type=_port, default=9003, help="health in plaintext (default %(default)s)")
    ports.add_argument("--metrics-port", type=_port, default=9090, help="Prometheus, /debug (default %(default)s)")
    serve.add_argument(
        "--config", metavar="FILE", type=Path, help="configuration, reloaded when it changes and on SIGHUP"
    )
    serve.add_argument("--insecure", action="store_true", help="plaintext instead of TLS on the ext_proc port")
    serve.add_argument("--transport", choices=("h2", "grpcio"), default="h2", help="gRPC server (default %(default)s)")
    serve.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="write what `picker simulate --trace` needs (no text), 256 MB at most",
    )
    replicas = serve.add_mutually_exclusive_group()
    replicas.add_argument(
        "--leader-election", action="store_true", help="several replicas: one serves, the others follow, synced"
    )
    replicas.add_argument(
        "--active-active", action="store_true", help="several replicas: all serve, each corrects for the others"
    )
    serve.add_argument(
        "--metrics-auth",
        action="store_true",
        help="readers of the metrics port need a token that the API server lets get /metrics",
    )
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    serve.add_argument("--log-format", choices=("json", "text"), default="json")

    check = commands.add_parser("check", help="check a configuration file", allow_abbrev=False)
    check.set_defaults(run=_check)
    check.add_argument("config", metavar="CONFIG", type=Path, nargs="?")
    instead = check.add_mutually_exclusive_group()
    instead.add_argument("--reference", action="store_true", help="print every key, as Markdown tables")
    instead.add_argument("--schema", action="store_true", help="print a JSON Schema of the file, for editors and tools")

    convert = commands.add_parser(
        "convert", help="read an EndpointPickerConfig of the llm-d / GIE picker", allow_abbrev=False
    )
    convert.set_defaults(run=_convert)
    convert.add_argument("file", metavar="FILE", type=Path)
    convert.add_argument("--key", help="which of a ConfigMap's documents (default: its first)")

    explain = commands.add_parser(
        "explain", help="why this endpoint? a running picker's last decisions", allow_abbrev=False
    )
    explain.set_defaults(run=_explain)
    _add_metrics_port(explain)
    explain.add_argument("--count", type=_positive, default=5, help="how many decisions (default %(default)s)")
    explain.add_argument("--json", action="store_true", help="as JSON")
    which = explain.add_argument_group("which ones (all that is given has to hold)")
    which.add_argument("request_id", nargs="?", help="of this request (x-request-id)")
    which.add_argument("--endpoint", metavar="NAME|HOST:PORT", help="that went there, or were served there")
    which.add_argument("--tenant", metavar="NAME", help="of this tenant")
    begin = which.add_mutually_exclusive_group()
    begin.add_argument("--since", type=_moment, metavar="AGE|TIME", help="made since then: 10m, or as --from")
    begin.add_argument("--from", dest="since", type=_moment, metavar="TIME", help="2026-01-31T14:05:00Z, or `5m ago`")
    which.add_argument("--to", type=_moment, metavar="TIME", help="made until then")

    top = commands.add_parser("top", help="a running picker at a glance, on a terminal", allow_abbrev=False)
    top.set_defaults(run=_top)
    _add_metrics_port(top)
    top.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="(default %(default)g)")
    top.add_argument(
        "--sort",
        choices=("load", "waiting", "kv", "hits", "age", "name"),
        default="load",
        help="what endpoints are sorted by (default %(default)s)",
    )
    top.add_argument("--once", action="store_true", help="one frame, as text; so too where this is no terminal")

    _add_simulation(commands)

    drain = commands.add_parser(
        "drain-envoy", help="on SIGTERM, let the Envoy of this pod finish with its clients", allow_abbrev=False
    )
    drain.set_defaults(run=_drain_envoy)
    drain.add_argument(
        "--admin", default="127.0.0.1:19000", metavar="HOST:PORT", help="Envoy's admin port (default %(default)s)"
    )
    drain.add_argument(
        "--pressure-file", type=Path, metavar="FILE", help="what its overload manager's injected_resource watches"
    )
    drain.add_argument("--seconds", type=float, default=130.0, help="at most so long (default %(default)s)")

    demo = commands.add_parser(
        "demo", help="real Envoy, simulated model servers: round robin, then the picker", allow_abbrev=False
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--replicas", type=int, default=4, help="simulated model servers (default %(default)s)")
    demo.add_argument("--port", type=_port, default=0, help="of Envoy (default: any free one)")
    demo.add_argument("--seed", type=int, default=1, help="of the workloads (default %(default)s)")
    demo.add_argument("--stay", action="store_true", help="then keep everything up, with gentle traffic, until Ctrl-C")
    return parser


def _add_metrics_port(command: argparse.ArgumentParser) -> None:
    """How a running picker is asked."""
    command.add_argument(
        "--address", default="127.0.0.1:9090", metavar="HOST:PORT", help="its metrics port (default %(default)s)"
    )
    token = command.add_mutually_exclusive_group()
    token.add_argument("--token-file", type=Path, metavar="FILE", help="a bearer token, where the port wants one")
    token.add_argument("--token", help="the token itself; other users of this machine may see it")


def _add_simulation(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`simulate` and `tune` bring a simulator: it is loaded only where one of them is asked for."""
    for name, text in (
        ("simulate", "routing policies on a workload, over simulated model servers"),
        ("tune", "search the knobs on a workload or a recording, and prove the gain"),
    ):
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        if name in sys.argv[1:2]:
            module = importlib.import_module(f"picker.sim.cli_{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0..65535)")
    return int(text)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0.1 to 3600 seconds")
    return seconds


def _moment(text: str) -> str:
    """The words as they are: an age counts from the picker's clock."""
    from picker.edge.telemetry.moments import MomentError, moment

    try:
        moment(text, 0.0)
    except MomentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _fail(message: str) -> int:
    print(f"picker: {message}", file=sys.stderr)
    return 1


def _serve(options: argparse.Namespace) -> int:
    import logging

    from picker.config import ConfigError
    from picker.edge import static_endpoints as static_source
    from picker.edge.grpc import tls
    from picker.edge.kubernetes.credentials import CredentialsError
    from picker.edge.telemetry.logs import Log, configure
    from picker.wiring import Picker, ServeOptions

    given = [name for name in ("endpoints", "endpoints_file", "pool", "selector") if getattr(options, name) is not None]
    if len(given) != 1:
        return _fail(
            "give one of --endpoints, --endpoints-file, --pool, --selector" + (f" (got {given})" if given else "")
        )
    configure(options.log_level, options.log_format)

    try:
        cluster = _cluster(options)
    except ValueError as error:
        return _fail(str(error))

    async def run() -> int:
        targets = static_source.parse_list(options.endpoints) if options.endpoints is not None else []
        if options.endpoints is not None and not targets:
            raise static_source.SourceError("--endpoints names no endpoint: give host:port,...")
        serve_options = ServeOptions(
            host=options.host,
            grpc_port=options.grpc_port,
            grpc_health_port=options.grpc_health_port,
            metrics_port=options.metrics_port,
            config_file=options.config,
            insecure=options.insecure,
            targets=tuple(targets),
            endpoints_file=options.endpoints_file,
            record_file=options.record,
            cluster=cluster,
            leader_election=options.leader_election,
            active_active=options.active_active,
            metrics_auth=options.metrics_auth,
            transport=options.transport,
        )
        return await Picker(serve_options, log=Log(logging.getLogger("picker"))).run()

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(run())
    except (ConfigError, static_source.SourceError, tls.TlsError, CredentialsError) as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _fail(f"{error.strerror} (--grpc-port, --grpc-health-port, --metrics-port; 0 takes any free one)")
        return _fail(str(error))


def _cluster(options: argparse.Namespace) -> "PoolTarget | SelectorTarget | None":
    """What the flags name in a cluster. Raises `ValueError`."""
    from picker.edge.kubernetes.credentials import Credentials
    from picker.edge.kubernetes.source import PoolTarget, SelectorTarget, parse_label_selector

    if options.pool is None and options.selector is None:
        if options.leader_election:
            raise ValueError("--leader-election needs --pool or --selector: the lease lives in the cluster")
        if options.metrics_auth:
            raise ValueError("--metrics-auth needs --pool or --selector: the cluster's API server reviews the tokens")
        return None
    namespace = options.namespace or os.environ.get("NAMESPACE") or Credentials().default_namespace()
    if options.pool is not None:
        return PoolTarget(options.pool, namespace)
    if options.target_port is None:
        raise ValueError("--selector needs --target-port: the ports of the model servers")
    ports = tuple(_port(part.strip()) for part in options.target_port.split(","))
    return SelectorTarget(parse_label_selector(options.selector), ports, namespace)


def _loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """uvloop where it is installed, else the standard loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _check(options: argparse.Namespace) -> int:
    from picker import config
    from picker.edge.process.config_file import read

    if options.reference or options.schema:
        from picker.config.schema import DIALECT, reference_markdown, schema

        print(reference_markdown() if options.reference else json.dumps({"$schema": DIALECT, **schema()}, indent=2))
        return 0
    if options.config is None:
        return _fail("give a configuration file, --reference or --schema")
    try:
        loaded = read(options.config)
    except config.ConfigError as error:
        words = str(error)
        return _fail(words if str(options.config) in words else f"{options.config}: {words}")
    warnings = config.warnings(loaded)
    for warning in warnings:
        print(f"warning: {warning}")
    print(f"{options.config}: usable, with {len(warnings)} to look at" if warnings else f"{options.config}: good")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from picker.lab.demo import demo

    return demo(
        replicas=options.replicas,
        seed=options.seed,
        port=options.port,
        stay=options.stay,
        loop_factory=_loop_factory(),
    )


def _drain_envoy(options: argparse.Namespace) -> int:
    from picker.edge.process.envoy_drain import drain_envoy

    return drain_envoy(options.admin, options.pressure_file, options.seconds)


def _convert(options: argparse.Namespace) -> int:
    import yaml

    from picker.convert import ConversionError, convert

    try:
        conversion = convert(options.file.read_text("utf-8"), options.key)
    except (OSError, UnicodeDecodeError) as error:
        return _fail(f"cannot read {options.file}: {error}")
    except ConversionError as error:
        return _fail(f"{options.file}: {error}")
    for note in conversion.notes:
        print(f"# {note}")
    print(yaml.safe_dump(conversion.configuration, sort_keys=False), end="")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from picker.edge.telemetry.explain import AskError, ask, bearer_token, show
    from picker.edge.telemetry.printable import printable
    from picker.edge.telemetry.question import nothing_found

    wanted = {
        "request_id": options.request_id,
        "endpoint": options.endpoint,
        "tenant": options.tenant,
        "from": options.since,
        "to": options.to,
        "count": str(options.count),
    }
    try:
        answer = ask(
            options.address,
            {name: value for name, value in wanted.items() if value is not None},
            bearer_token(options.token, options.token_file),
        )
    except AskError as error:
        return _fail(printable(str(error)))
    if options.json or answer["decisions"]:
        show(answer["decisions"], as_json=options.json)
    return 0 if answer["decisions"] else _fail(printable(nothing_found(answer)))


def _top(options: argparse.Namespace) -> int:
    from picker.edge.telemetry.explain import AskError, bearer_token
    from picker.edge.telemetry.printable import printable
    from picker.edge.telemetry.top.viewing import view

    try:
        view(
            options.address,
            bearer_token(options.token, options.token_file),
            interval_seconds=options.interval,
            order=options.sort,
            once=options.once,
        )
    except AskError as error:
        return _fail(printable(str(error)))
    return 0
