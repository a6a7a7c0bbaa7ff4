"""Commands and exit codes. 0: done; 1: it could not be done, one line says why; 2: wrong usage.

Imports are inside the commands: `picker --version` and a usage error answer at once.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from picker.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="picker", description="An Envoy ext_proc endpoint picker for LLM inference.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"picker {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the picker", allow_abbrev=False)
    serve.set_defaults(run=_serve)
    source = serve.add_argument_group("where the endpoints come from (one of)")
    source.add_argument(
        "--endpoints", metavar="HOST:PORT,...", help="a fixed list; names are resolved again every 30 s"
    )
    source.add_argument("--endpoints-file", metavar="FILE", type=Path, help="YAML or JSON, read again when it changes")
    source.add_argument("--pool", metavar="NAME", help="an InferencePool of the cluster")
    source.add_argument("--selector", metavar="KEY=VALUE,...", help="pods by label, with --target-port")
    source.add_argument("--target-port", metavar="PORT,...", help="ports of the model servers, with --selector")
    source.add_argument(
        "--namespace", metavar="NAME", help="of the pool or the pods (default: $NAMESPACE, then the kubeconfig's)"
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
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    serve.add_argument("--log-format", choices=("json", "text"), default="json")

    check = commands.add_parser("check", help="check a configuration file", allow_abbrev=False)
    check.set_defaults(run=_check)
    check.add_argument("config", metavar="CONFIG", type=Path)

    demo = commands.add_parser(
        "demo", help="real Envoy, simulated model servers: round robin, then the picker", allow_abbrev=False
    )
    demo.set_defaults(run=_demo)
    demo.add_argument("--replicas", type=int, default=4, help="simulated model servers (default %(default)s)")
    demo.add_argument("--seed", type=int, default=1, help="of the workloads (default %(default)s)")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0..65535)")
    return int(text)


def _fail(message: str) -> int:
    print(f"picker: {message}", file=sys.stderr)
    return 1


def _serve(options: argparse.Namespace) -> int:
    import logging

    from picker.config import ConfigError
    from picker.edge import static_source, tls
    from picker.wiring import Log, Picker, ServeOptions

    given = [name for name in ("endpoints", "endpoints_file", "pool", "selector") if getattr(options, name) is not None]
    if len(given) != 1:
        return _fail(
            "give one of --endpoints, --endpoints-file, --pool, --selector" + (f" (got {given})" if given else "")
        )
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)

    async def run() -> int:
        targets = static_source.parse_list(options.endpoints) if options.endpoints is not None else []
        serve_options = ServeOptions(
            host=options.host,
            grpc_port=options.grpc_port,
            grpc_health_port=options.grpc_health_port,
            metrics_port=options.metrics_port,
            config_file=options.config,
            insecure=options.insecure,
            targets=tuple(targets),
            endpoints_file=options.endpoints_file,
            transport=options.transport,
        )
        return await Picker(serve_options, log=Log(logging.getLogger("picker"))).run()

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(run())
    except (ConfigError, static_source.SourceError, tls.TlsError, OSError) as error:
        return _fail(str(error))


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

    try:
        text = options.config.read_text("utf-8")
        loaded = config.load(text)
    except (OSError, UnicodeDecodeError) as error:
        return _fail(f"cannot read {options.config}: {error}")
    except config.ConfigError as error:
        return _fail(f"{options.config}: {error}")
    for warning in config.warnings(loaded):
        print(f"warning: {warning}")
    print(f"{options.config}: good")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from picker.sim.demo import demo

    return demo(replicas=options.replicas, seed=options.seed)
