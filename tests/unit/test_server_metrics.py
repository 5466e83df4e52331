"""/metrics and /health."""

from __future__ import annotations

from typing import Any

import httpx2
from fake_service import FakeService, finish, serving
from prometheus_client.parser import text_string_to_metric_families

from edgellm.contracts.events import Failed, Progress, Started, TextDelta
from edgellm.contracts.status import Health
from edgellm.errors import WorkerDied
from edgellm.server.metrics import Metrics
from edgellm.service import ServiceHealth

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def values(text: str) -> dict[str, float]:
    """Every sample of model fake:latest: name{other labels} -> value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith(("edgellm_http_responses", "edgellm_daemon_")):
                labels["model"] = "fake:latest"
            assert labels.pop("model") == "fake:latest"
            extra = "".join(f"{{{key}={value}}}" for key, value in sorted(labels.items()))
            found[sample.name + extra] = sample.value
    return found


def test_requests_are_counted_on_their_way_through() -> None:
    service = FakeService()
    with serving(service) as server:

        def scraped() -> dict[str, float]:
            response = httpx2.get(server.url + "/metrics", trust_env=False)
            assert response.headers["content-type"].startswith("text/plain")
            return values(response.text)

        for script in (service.script, (Started(7, 0, 1), TextDelta("Hel"), Failed(WorkerDied("gone").info))):
            service.script = script
            for stream in (False, True):
                httpx2.post(server.url + "/v1/chat/completions", json=CHAT | {"stream": stream}, trust_env=False)
        found = scraped()
    assert (found["edgellm_requests_running"], found["edgellm_requests_waiting"]) == (2.0, 1.0)
    assert found["edgellm_worker_restarts_total"] == 3
    assert found["edgellm_requests_total{outcome=stop}"] == 2
    assert (found["edgellm_model_ready"], found["edgellm_kv_used"], found["edgellm_kv_capacity"]) == (1, 10, 8192)
    assert found["edgellm_http_responses_total{status=200}"] == 3  # a stream that fails later has begun with 200
    assert found["edgellm_http_responses_total{status=503}"] == 1
    assert found["edgellm_requests_total{outcome=worker_died}"] == 2
    assert found["edgellm_prompt_tokens_total"] == 14
    assert found["edgellm_cached_tokens_total"] == 6
    assert (found["edgellm_drafted_tokens_total"], found["edgellm_accepted_tokens_total"]) == (8, 6)
    assert found["edgellm_completion_tokens_total"] == 10
    assert found["edgellm_time_to_first_token_seconds_count"] == 4
    assert found["edgellm_inter_token_seconds_count"] == 2
    assert found["edgellm_request_seconds_count"] == 4
    assert found["edgellm_queue_seconds_sum"] == 0.02
    assert found["edgellm_prefill_seconds_sum"] == 0.2
    assert found["edgellm_decode_seconds_sum"] == 0.8


def test_histograms_have_the_edges_people_ask_about() -> None:
    metrics = Metrics(list)
    follower = metrics.follow("fake:latest")
    for event in (Progress("load", 1.0), Started(7, 0, 1), TextDelta("Hel"), *finish("lo")):
        follower.see(event)
    follower.close()
    found = values(metrics.render().decode())
    for name in ("time_to_first_token", "inter_token", "queue", "prefill", "decode", "request"):
        for edge in ("0.1", "0.2", "2.0"):
            assert f"edgellm_{name}_seconds_bucket{{le={edge}}}" in found


def test_a_request_that_is_given_up_counts_as_cancelled() -> None:
    metrics = Metrics(list)
    follower = metrics.follow("fake:latest")
    follower.see(TextDelta("Hel"))
    follower.close()
    assert values(metrics.render().decode())["edgellm_requests_total{outcome=cancelled}"] == 1


def test_two_servers_in_one_process_do_not_share_counters() -> None:
    Metrics(list).follow("fake:latest").close()
    assert "edgellm_requests_total{" not in Metrics(list).render().decode()


def test_health_tells_the_truth() -> None:
    service = FakeService()
    with serving(service) as server:

        def health() -> tuple[int, dict[str, Any]]:
            response = httpx2.get(server.url + "/health", trust_env=False)
            return response.status_code, response.json()

        status, body = health()
        assert (status, body["status"], body["version"]) == (200, "ok", "0.1.0")
        assert httpx2.head(server.url + "/health", trust_env=False).status_code == 200
        service.state = ServiceHealth("degraded", {"fake:latest": Health("restarting", 0, 1, "it died", "llama.cpp")})
        status, body = health()
        assert (status, body["status"]) == (200, "degraded")
        assert body["models"]["fake:latest"] == {
            "state": "restarting",
            "running": 0,
            "waiting": 1,
            "detail": "it died",
            "engine": "llama.cpp",
        }
        server.app.state.front.draining = True
        status, body = health()
        assert (status, body["status"]) == (503, "draining")
        refused = httpx2.post(server.url + "/v1/chat/completions", json=CHAT, trust_env=False)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "true")
