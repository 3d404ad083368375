"""The ``braidmq`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from braidmq import __version__
from braidmq.base.errors import BraidError, UsageError
from braidmq.cli.lazy import LazyGroup

_COMMANDS: Final = {
    "start": ("braidmq.cli.start:start", "Run a node."),
    "check": ("braidmq.cli.check:check", "Check a configuration without starting anything."),
    "pub": ("braidmq.cli.messages.pub:pub", "Publish messages; accepts the options of mosquitto_pub."),
    "sub": ("braidmq.cli.messages.sub:sub", "Print messages; accepts the options of mosquitto_sub."),
    "bench": ("braidmq.cli.bench.commands:bench", "Benchmark a broker; accepts the options of emqtt_bench."),
    "passwd": ("braidmq.cli.passwd:passwd", "Set passwords in a password file."),
    "import-mosquitto": ("braidmq.cli.mosquitto.command:import_mosquitto", "Convert a Mosquitto configuration."),
    "history": ("braidmq.cli.history.commands:history", "Read and manage the history of a running node."),
    "pipeline": ("braidmq.cli.pipeline:pipeline", "Run a Spark job on the history."),
    "pyspark": ("braidmq.cli.spark:pyspark", "Start a Python shell with Spark and the history."),
    "spark-submit": ("braidmq.cli.spark:spark_submit", "Run a Spark application that uses the history."),
    "backup": ("braidmq.cli.backup:backup", "Back up a running node."),
    "restore": ("braidmq.cli.backup:restore", "Restore a data directory from a backup."),
    "salvage": ("braidmq.cli.salvage:salvage", "Repair a damaged or missing log by discarding data."),
    "dev-cluster": ("braidmq.cli.dev_cluster:dev_cluster", "Run a cluster on this machine."),
    "ctl": ("braidmq.cli.ctl.commands:ctl", "Inspect and control a running node."),
}
# Commands that other commands run.
_UNLISTED: Final = {
    "worker": "braidmq.cli.worker:worker",
}
_TRACEBACK_WANTED: Final = "BRAIDMQ_TRACEBACK"
_MOSQUITTO_LIKE: Final = ("pub", "sub")  # usage errors exit with 1, as scripts expect


@click.command(
    cls=LazyGroup, entries=_COMMANDS, unlisted=_UNLISTED, when_missing="the module {} is missing; reinstall braidmq".format
)
@click.version_option(__version__, prog_name="braidmq")
def braidmq() -> None:
    """braidmq, an MQTT broker and its tools. `braidmq COMMAND --help` describes one command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; every failure is one line and an exit status."""
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    from braidmq.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE
    from braidmq.client.errors import EXIT_FAILED, ClientError

    name = arguments[0] if arguments and arguments[0] in (*_COMMANDS, *_UNLISTED) else ""
    try:
        result = braidmq.main(arguments, prog_name="braidmq", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except ClientError as failure:
        return _fail(name, str(failure), failure.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_USAGE
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "braidmq"
        _fail("", f"{command}: {error.format_message()} (see {command} --help)", 0)
        return EXIT_FAILED if name in _MOSQUITTO_LIKE else EXIT_USAGE
    except click.ClickException as error:
        return _fail(name, error.format_message(), error.exit_code)
    except UsageError as error:
        return _fail(name, str(error), EXIT_USAGE)
    except BraidError as error:
        return _fail(name, str(error), EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `braidmq sub | head` is not an error, but nothing must be flushed to the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(name, f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_FAILED)
    except Exception as error:
        if _TRACEBACK_WANTED in os.environ:
            raise
        return _fail(name, f"failed unexpectedly: {error!r} (set {_TRACEBACK_WANTED}=1 to see where)", EXIT_FAILED)


def _fail(name: str, sentence: str, exit_code: int) -> int:
    click.echo(f"braidmq {name}: {sentence}" if name else sentence, err=True)
    return exit_code


if __name__ == "__main__":
    main()
