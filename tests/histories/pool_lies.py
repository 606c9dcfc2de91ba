"""Consumers of a shared subscription that do not tell the truth, each in one way."""

from __future__ import annotations

from tests.histories.pulsar_members import PulsarMember
from tests.histories.recording import Output


class UnsentAcknowledgements(PulsarMember):
    """Confirms acknowledgements that it does not send."""

    def acknowledge(self, values: list[str]) -> Output:
        return {"values": []}


class SecondDeliveries(PulsarMember):
    """Is given once more what it has acknowledged."""

    _before: str = ""

    def acknowledge(self, values: list[str]) -> Output:
        self._before = values[0]
        return super().acknowledge(values)

    def take(self, permits: int) -> Output:
        found, self._before, again = super().take(permits), "", self._before
        return {**found, "values": [*found["values"], again]} if again else found


class OwnGroups(PulsarMember):
    """Takes in a group of its own what others have as well."""

    def attach(self, topic: str, kind: int, name: str, priority: int = 0) -> None:
        self.group = name
        super().attach(topic, kind, name, priority)


class SilentMembers(PulsarMember):
    """Acknowledges the first of what it is given, and does not say that it was."""

    def take(self, permits: int) -> Output:
        found = super().take(permits)
        first, rest = found["values"][:1], found["values"][1:]
        more = super().acknowledge(first)["values"] if first else []
        return {**found, "values": rest + more}


class KeptHoldings(PulsarMember):
    """Keeps what it says that it gives back."""

    def give_back(self) -> Output:
        return self.take(0)


class DisorderedMembers(PulsarMember):
    """Is given two messages at a time, the second one first."""

    _late: tuple[str, ...] = ()

    def _came(self) -> Output:
        came = [*self._late, *super()._came()["values"]]
        self._late = tuple(came) if len(came) == 1 else ()
        return {"values": [] if self._late else came[::-1]}


class KeptTurns(PulsarMember):
    """Does not say that its turn was taken away."""

    @property
    def turns_lost(self) -> int:
        return 0

    @turns_lost.setter
    def turns_lost(self, count: int) -> None:
        pass


class SecondTurns(PulsarMember):
    """Is sent again, after its turn was taken away, what another has by then."""

    _had: tuple[str, ...] = ()

    def _came(self) -> Output:
        came = super()._came()["values"]
        again, self._had = self._had if self.turns_lost else (), tuple(came)
        return {"values": [*came, *again]}


class TakenTurns(PulsarMember):
    """Takes the turn over from another; that is the truth."""

    took = False

    def attach(self, topic: str, kind: int, name: str, priority: int = 0) -> None:
        super().attach(topic, kind, name, priority)
        self.took = priority == 0


class DisorderedTurns(TakenTurns):
    """Is sent in another order what comes with a turn that it has taken over."""

    def _came(self) -> Output:
        came = super()._came()["values"]
        return {"values": came[::-1] if self.took else came}


class PassingTurns(TakenTurns):
    """Passes over the message that comes first when it has taken a turn over."""

    def _came(self) -> Output:
        came = super()._came()["values"]
        passed = 1 if self.took and came else 0
        self.took = self.took and not passed
        return {"values": came[passed:]}
