"""The hub of a class on one machine: every learner is a user of it. README.md beside this file is the page to follow.

What differs from class to class comes from the environment, that is from /etc/inflight-hub.conf: `SETTINGS` has its
names, and what holds where one is not given.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COURSE = HERE.parents[2]
SETTINGS = {
    "HUB_CERT": "",  # certificate, and its key: without them the hub listens on this machine only
    "HUB_KEY": "",
    "HUB_PORT": "",  # 443 with a certificate, else 8880
    "HUB_GROUP": "inflight-class",  # who may log in
    "HUB_CORES": "2",  # of each learner
    "HUB_MEMORY": "4G",
    "HUB_IDLE_S": "5400",  # a server that nobody has used for so long ends, and its kernels and engines with it
    "HUB_STATE": "/srv/inflight-hub",  # cookies and tokens
    "HUB_CACHE": "/shared/inflight",  # checkpoint and engines, filled by root
}
given = {name: os.environ.get(name) or value for name, value in SETTINGS.items()}
if bool(given["HUB_CERT"]) != bool(given["HUB_KEY"]):
    sys.exit("HUB_CERT and HUB_KEY belong together: give both, or neither for a hub that listens on this machine only.")

state = Path(given["HUB_STATE"])
state.mkdir(mode=0o700, parents=True, exist_ok=True)
state.chmod(0o700)

c = get_config()

# Where it listens. The proxy's and the hub's own ports leave 8000 to 8002 to Triton.
if given["HUB_CERT"]:
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = given["HUB_CERT"], given["HUB_KEY"]
    c.JupyterHub.bind_url = f"https://:{given['HUB_PORT'] or 443}"
else:
    c.JupyterHub.bind_url = f"http://127.0.0.1:{given['HUB_PORT'] or 8880}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:8881"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:8882"
c.ConfigurableHTTPProxy.command = [str(HERE / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{state / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")

# Who may log in: users of this machine, by their passwords, that learners.py has put into the group.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {given["HUB_GROUP"]}
c.PAMAuthenticator.open_sessions = False

# What is started for each: their workspace, and JupyterLab in it, in the course's environment.
c.Spawner.cmd = [str(HERE / "learner_server.py")]
# Kernels talk by files that only their user can open: whoever asks a TCP port of one for its outputs is given them.
c.Spawner.args = ["--KernelManager.transport=ipc"]
c.Spawner.notebook_dir = "~/work"
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.environment = {
    "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    "JUPYTER_CONFIG_PATH": str(COURSE / "assets" / "jupyterlab"),
    "INFLIGHT_WORK": "~/work",
    "INFLIGHT_HOME": given["HUB_CACHE"],
    "INFLIGHT_PRIVATE": "1",  # their servers answer them alone
}
c.Spawner.start_timeout = 180
c.Spawner.http_timeout = 120

# Limits. With systemd, a cgroup holds all that a learner runs, and they have a /tmp of their own. Without it, in a
# container mostly, each process has at most the memory of a learner, so whoever starts many has many times that.
c.Spawner.cpu_limit = float(given["HUB_CORES"])
c.Spawner.mem_limit = given["HUB_MEMORY"]
if Path("/run/systemd/system").is_dir():
    c.JupyterHub.spawner_class = "systemd"
    c.JupyterHub.cleanup_servers = False  # learners go on while the hub starts again, with other settings for instance
    c.SystemdSpawner.unit_name_template = "inflight-{USERNAME}"
    c.SystemdSpawner.isolate_tmp = True
    c.SystemdSpawner.disable_user_sudo = True
    c.SystemdSpawner.unit_extra_properties = {
        "ProtectProc": "invisible",
        "MemorySwapMax": "0",
        "TasksMax": "2000",
        "TimeoutStopSec": "20",  # a JupyterLab that is told to stop while a kernel starts may never end by itself
    }
else:
    c.JupyterHub.spawner_class = "localprocess"
    c.Spawner.environment["LIMIT_EACH_PROCESS"] = "1"

# Idle servers end.
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={given['HUB_IDLE_S']}"],
    }
]
