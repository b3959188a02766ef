"""nginx as a pass-through, with one worker: the floor of what a hop can cost."""

from __future__ import annotations

import os

from benchmarks.peers.base import STREAMS, Peer, Site
from benchmarks.processes import Target
from tests.fixtures.ports import free_port

_CONFIGURATION = """
daemon off;
{user}
pid {place}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    {temporary}
    upstream engine {{ server 127.0.0.1:{engine}; keepalive {streams}; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx(Peer):
    """Nginx, `proxy_buffering off`, connections kept: the floor."""

    name = "nginx"

    def start(self, site: Site) -> Target:
        program, port = site.on_path("nginx"), free_port()
        place = site.place / "nginx"
        place.mkdir(exist_ok=True)
        written = place / "nginx.conf"
        written.write_text(
            _CONFIGURATION.format(
                # Where root starts it, its worker would be another user, who has no way in here.
                user="user root;" if os.geteuid() == 0 else "",
                place=place,
                connections=3 * STREAMS,
                streams=STREAMS,
                engine=site.engine_port,
                port=port,
                temporary="\n    ".join(f"{name}_temp_path {place}/{name};" for name in _TEMPORARY),
            )
        )
        process = site.program(self.name, program, "-c", str(written), "-e", "stderr")
        return Target(name=self.name, port=port, parts=(("nginx", process),))
