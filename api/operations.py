"""For those who run the service: alive, ready, and its figures for Prometheus. Needs no token."""

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from api.auth import PortsOf
from api.ports import Ports
from api.problems import problem, responses
from api.schemas import Health
from tuner.core.study import StudyState

router = APIRouter(tags=["operations"])


@router.get("/healthz")
def get_health() -> Health:
    """The process answers."""
    return Health(status="alive")


@router.get("/readyz", response_model=Health, responses={503: responses()[503]})
def get_readiness(ports: PortsOf) -> Health | Response:
    """The database can be reached and its tables are of this version."""
    if ports.readings.is_ready():
        return Health(status="ready")
    return problem(503, "not-ready", "the database cannot be reached, or its tables are of another version")


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def get_metrics(ports: PortsOf) -> Response:
    """Counted from the tables when asked, so every server of one database says the same."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Census(ports))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Census(Collector):
    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def collect(self) -> Iterator[Metric]:
        census = self._ports.readings.census()
        studies = GaugeMetricFamily("tuner_studies", "Studies by state.", labels=["state"])
        for state in StudyState:
            studies.add_metric([state], census.studies.get(state, 0))
        yield studies
        trials = GaugeMetricFamily("tuner_trials", "Trials by outcome.", labels=["outcome"])
        for outcome in ("running", "rejected", "failed", "measured"):
            trials.add_metric([outcome], census.trials.get(outcome, 0))
        yield trials
        held = SummaryMetricFamily(
            "tuner_start_held_seconds", "Seconds that an engine was held, by how its start ended.", labels=["ended"]
        )
        for ended, (count, seconds) in sorted(census.held_s.items()):
            held.add_metric([ended], count, seconds)
        yield held
        yield SummaryMetricFamily(
            "tuner_start_ready_seconds", "Seconds from an engine's start to its first healthy answer.", *census.ready
        )
        oldest = census.oldest_queued_at
        waited_s = (self._ports.clock.now() - oldest).total_seconds() if oldest is not None else 0.0
        yield GaugeMetricFamily("tuner_queue_age_seconds", "Age of the oldest queued study.", max(0.0, waited_s))
