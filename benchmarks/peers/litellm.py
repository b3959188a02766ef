"""LiteLLM's proxy, with one worker and a key, as its own pages start it."""

from __future__ import annotations

from benchmarks.peers.base import Peer, Site
from benchmarks.processes import Target
from tests.fixtures.ports import free_port

_KEY = "sk-benchmark"
_CONFIGURATION = """
model_list:
  - model_name: scripted
    litellm_params:
      model: hosted_vllm/scripted
      api_base: {engine}/v1
      api_key: none
      use_chat_completions_api: true  # or it would pass /v1/responses on to the engine
general_settings:
  master_key: {key}
"""


class LiteLlm(Peer):
    """LiteLLM proxy, one worker, a master key, no database, provider `hosted_vllm`."""

    name = "litellm"
    distribution = (".venv-peers", "litellm")
    dialects = ("chat", "messages", "responses")

    def start(self, site: Site) -> Target:
        port, program = free_port(), site.installed(".venv-peers", "litellm")
        written = site.place / "litellm.yaml"
        written.write_text(_CONFIGURATION.format(engine=site.engine_url, key=_KEY))
        process = site.program(
            self.name,
            *(program, "--config", str(written), "--host", "127.0.0.1", "--port", str(port)),
            *("--telemetry", "False"),
            # Its table of prices comes with it; otherwise it asks the network for a newer one.
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
        return Target(
            name=self.name,
            port=port,
            parts=(("proxy", process),),
            key=_KEY,
            dialects=self.dialects,
        )
