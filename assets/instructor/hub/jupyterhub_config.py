"""The hub of a class on one machine: a container for each learner. README.md beside this file is the page to follow."""

import os

import docker

NETWORK, CORES = "inflight-class", 2

c = get_config()

# This machine only, until there is a certificate. Then, in place of the next line:
#     c.JupyterHub.bind_url = "https://:443"
#     c.JupyterHub.ssl_cert = "/etc/letsencrypt/live/class.example.org/fullchain.pem"
#     c.JupyterHub.ssl_key = "/etc/letsencrypt/live/class.example.org/privkey.pem"
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.hub_ip = docker.from_env().networks.get(NETWORK).attrs["IPAM"]["Config"][0]["Gateway"]  # for containers
c.JupyterHub.cleanup_servers = False  # learners go on while the hub starts again

# Learners sign up with a name and a password, and the instructor lets them in at /hub/authorize.
c.JupyterHub.authenticator_class = "native"
c.NativeAuthenticator.minimum_password_length = 10
c.Authenticator.admin_users = {"instructor"}
c.Authenticator.allow_all = True  # whom the instructor has let in

c.JupyterHub.spawner_class = "docker"
c.DockerSpawner.image = "inflight-class"
c.DockerSpawner.network_name = NETWORK
c.DockerSpawner.remove = True  # each start is from the image as it then is; what the volume has stays
c.DockerSpawner.volumes = {"inflight-{username}": "/home/learner/work"}
c.DockerSpawner.cmd = ["sh", "-c", "inflight lab --prepare-only && exec jupyterhub-singleuser"]
c.DockerSpawner.notebook_dir = "/home/learner/work"
c.DockerSpawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.DockerSpawner.mem_limit = "4G"
c.DockerSpawner.start_timeout = c.DockerSpawner.http_timeout = 180  # thirty may begin at once


def host_config(spawner) -> dict:
    """Processors by number, as an engine has a thread for each that it sees; and shared memory for Triton's models."""
    first = CORES * spawner.user.id
    mine = {(first + each) % os.cpu_count() for each in range(CORES)}
    return {"cpuset_cpus": ",".join(map(str, sorted(mine))), "shm_size": "512m"}


c.DockerSpawner.extra_host_config = host_config
