"""The application, from its ports. Knows no database and no engine."""

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware

from api import events, operations, problems, routes
from api.ports import Ports
from api.reading import Reading
from api.standing import Standings
from api.ui import pages
from tuner.core.study_file import StudyFile

VERSION = "1"

EXAMPLE: dict[str, Any] = {
    "name": "kimi-k3-gb300-decode",
    "model": "moonshotai/Kimi-K3",
    "hardware": {"gpu": "GB300", "gpus": 16, "gpus_per_node": 4},
    "space": "kimi_k3_gb300",
    "evaluator": "predicted",
    "workload": {
        "input_tokens": 1,
        "output_tokens": 1000,
        "context_tokens": [1, 8192],
        "concurrency": [1],
        "acceptance": {"synthetic": {"curve": "kimi-k3-dspark-coding"}},
    },
    "objective": {"maximize": "decode_tokens_per_s_per_user"},
    "budget": {"trials": 20},
}


def create_app(ports: Ports) -> FastAPI:
    app = FastAPI(
        title="LLM serving tuner",
        version=VERSION,
        description="Finds, proves and emits the best vLLM configuration for a model, a machine and a workload.",
        redoc_url=None,
        generate_unique_id_function=_name,
    )
    app.state.ports = ports
    app.state.reading = Reading(ports, Standings(ports.readings))
    for router in (routes.router, events.router, operations.router, pages.router):
        app.include_router(router)
    problems.install(app, ports.unavailable, _page_or_problem)
    app.add_middleware(GZipMiddleware, minimum_size=4096)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _page_or_problem(handler: problems.Handler) -> Callable[[Request, Exception], Response]:
    """What REST answers with a problem, a page tells in words."""

    def answer(request: Request, error: Exception) -> Response:
        problem = handler(request, error)
        if not request.url.path.startswith("/ui"):
            return problem
        return pages.for_a_reader(error, problem.status_code, json.loads(bytes(problem.body))["detail"])

    return answer


def _name(route: APIRoute) -> str:
    return route.name


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the study file (its body is read by us: JSON or YAML) and the problem in it."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        file = StudyFile.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(file.pop("$defs"))
        schemas["StudyFile"] = {**file, "examples": [EXAMPLE]}
        problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"))
        schemas["Problem"] = problem
        app.openapi_schema = document
    return app.openapi_schema
