"""A Java server in a test's hand, started from the jars that Maven fetched."""

from __future__ import annotations

import abc

from tests.servers import maven
from tests.servers.process import ServerProcess

# The second compiler costs more than its code saves in a JVM that lives for seconds.
FAST_START = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class JavaServer(ServerProcess):
    """One server on one folder, with a class that starts it."""

    HEAP = "128m"
    MAIN = ""

    def _command(self) -> list[str]:
        return self._java(self.MAIN, *self._arguments())

    def _java(self, main: str, *arguments: str) -> list[str]:
        """Return the command line of one of the server's classes."""
        command = ["java", f"-Xmx{self.HEAP}", *FAST_START, *self._properties()]
        return [*command, "-cp", maven.classpath(self.NAME), main, *arguments]

    def _properties(self) -> list[str]:
        return []

    @abc.abstractmethod
    def _arguments(self) -> list[str]:
        """Write the configuration; return the arguments that name it."""
