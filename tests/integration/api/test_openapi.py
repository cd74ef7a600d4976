"""The OpenAPI document is true: whatever it allows is answered as it says, and nothing is answered with a bug."""

import contextlib
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.integration.api.conftest import Service
from tuner.core.access import Scope

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
STREAMS = "/v1/studies/{study_id}/events"  # read until its study has ended; tests of its own


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_operation_answers_as_its_document_says(service: Service, mode: GenerationMode, known: bool) -> None:
    """With what the document allows, and with what it does not; of a study that is there, and of any."""
    study = service.submit()
    admin = service.token(Scope.ADMIN)
    answered: Counter[int] = Counter()
    schema = schemathesis.openapi.from_asgi("/openapi.json", service.client.app)
    for result in schema.exclude(path=STREAMS).get_all_operations():
        operation = result.ok()
        fixed = {"study_id": study, "number": 0} if known else {}
        path = {name: value for name, value in fixed.items() if f"{{{name}}}" in operation.path}

        @given(case=operation.as_strategy(generation_mode=mode, path_parameters=path or None))
        @settings(
            max_examples=15,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def answers(case: Case) -> None:
            answered[case.call_and_validate(headers=admin, checks=CHECKS).status_code] += 1

        with contextlib.suppress(Unsatisfiable):  # what takes no argument cannot be given a wrong one
            answers()
    assert answered[422] > 10
    if known and mode is GenerationMode.POSITIVE:
        assert answered[200] > 50
