"""k6 and Locust: a JSON array of requests and a script of some twenty lines that sends each of them once.

    [
    {"id": "9f2c...", "domain": "math", "body": {"messages": [...], "max_tokens": 412}},

Any HTTP tool can send these: POST `body` with a `model` added. Both scripts measure whole answers, not first tokens.
"""

from __future__ import annotations

import json

from promptkit.exporters.carry import carried
from promptkit.exporters.job import Job, Piece, array, body, sent_reasoning

K6 = """\
// Sends every prompt of a promptkit pack once. Written by `promptkit export`; change it as you like.
import http from 'k6/http';
import exec from 'k6/execution';
import { SharedArray } from 'k6/data';

const pack = new SharedArray('pack', () => JSON.parse(open(@PACK@)));

export const options = {
  scenarios: {
    pack: {
      executor: 'shared-iterations',
      iterations: pack.length,
      vus: Math.min(Number(__ENV.CONCURRENCY || 1), pack.length),
      maxDuration: '24h',
    },
  },
};

export default function () {
  const { id, domain, body } = pack[exec.scenario.iterationInTest];
  const url = `${__ENV.BASE_URL}/v1/chat/completions`;
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${__ENV.API_KEY || 'none'}` };
  http.post(url, JSON.stringify({ model: __ENV.MODEL, ...body }), { headers, tags: { id, domain }, timeout: '1h' });
}
"""

LOCUST = '''\
"""Sends every prompt of a promptkit pack once. Written by `promptkit export`; change it as you like."""

import json
import os
from pathlib import Path

from locust import HttpUser, task
from locust.exception import StopUser

PACK = json.loads(Path(__file__).with_name(@PACK@).read_text("utf-8"))
WAITING = iter(PACK)
LEFT = [len(PACK)]


class Client(HttpUser):
    @task
    def send(self):
        row = next(WAITING, None)
        if row is None:
            raise StopUser
        headers = {"Authorization": f"Bearer {os.environ.get('API_KEY', 'none')}"}
        body = {"model": os.environ["MODEL"], **row["body"]}
        self.client.post("/v1/chat/completions", json=body, headers=headers, name=f"{row['domain']} {row['id']}")
        LEFT[0] -= 1
        if not LEFT[0]:
            self.environment.runner.quit()
'''


def k6(job: Job) -> Piece:
    """Return NAME.json, NAME.js and the command; each request is tagged with id and domain."""
    name, script = f"{job.name}.json", f"{job.name}.js"
    command = job.shell(
        "k6", "run", "-e", "BASE_URL=$BASE_URL", "-e", "MODEL=$MODEL", "-e", f"CONCURRENCY={job.concurrency}",
        "--out", f"csv={job.name}.k6.csv", job.file(script),
    )  # fmt: skip
    return _piece(job, name, {script: K6.replace("@PACK@", json.dumps(f"./{name}"))}, command, "{id}")


def locust(job: Job) -> Piece:
    """Return NAME.json, a locustfile and the command; each request is named by domain and id."""
    name, script = f"{job.name}.json", "locustfile.py"
    model = job.shell("env", "MODEL=$MODEL")
    command = job.shell(
        "locust", "--locustfile", job.file(script), "--headless", "--only-summary", "--host", "$BASE_URL",
        "--users", str(job.concurrency), "--spawn-rate", str(job.concurrency), "--csv", f"{job.name}.locust",
    )  # fmt: skip
    source = LOCUST.replace("@PACK@", json.dumps(name))
    return _piece(job, name, {script: source}, f"{model} {command}", "{domain} {id}")


def _piece(job: Job, name: str, scripts: dict[str, str], command: str, reported: str) -> Piece:
    job, losses = carried(job, system=True, history=True, tools=True)
    rows = [{"id": p.id, "domain": p.domain, "body": body(job, p)} for p in job.prompts]
    return Piece(
        files={name: array(rows), **{k: v.encode() for k, v in scripts.items()}} if rows else {},
        command=command,
        losses=losses + sent_reasoning(job),
        ids=[(p.id, reported.format(id=p.id, domain=p.domain)) for p in job.prompts],
        notes=["The server applies its chat template.", "A server that wants a key: set API_KEY."],
    )
