#!/bin/sh
# Creates the secrets of compose.yaml in the folder `secrets`, with random passwords, and prints the API key once:
#
#   ./make-secrets.sh
#
# Existing files are not changed. The folder is only open to you. Its files can be read by everybody who reaches them,
# because the processes in the containers run as other users.
set -eu

cd "$(dirname "$0")"
folder=${1:-secrets}

if [ -e "$folder/crumb.toml" ]; then
  echo "make-secrets.sh: $folder/crumb.toml exists. Delete the folder to create new secrets." >&2
  exit 1
fi

random() { od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'; }
sha256() { printf %s "$1" | { sha256sum 2>/dev/null || shasum -a 256; } | cut -d ' ' -f 1; }

umask 077
mkdir -p "$folder"
redis_password=$(random 24)
exporter_password=$(random 24)
api_key=$(random 24)
id=$(random 16)
# A UUID of version 4.
owner=$(printf %s "$id" | sed -E 's/^(.{8})(.{4}).(.{3}).(.{3})(.{12})$/\1-\2-4\3-8\4-\5/')

umask 022
# The default user may only ping, for the health check. The rights of `crumb` are those of docs/operations.md.
cat >"$folder/redis-users" <<ACL
user default on nopass resetkeys resetchannels -@all +ping
user crumb on #$(sha256 "$redis_password") resetkeys ~bc:* resetchannels &bc:deltas &bc:liveness:* -@all +@read +@write +@scripting +@connection -@dangerous +publish +subscribe +pubsub +time +info
user exporter on #$(sha256 "$exporter_password") resetkeys resetchannels -@all +@connection +info +config|get +latency|latest +slowlog|len +slowlog|get
ACL

cat >"$folder/crumb.toml" <<TOML
# Settings of all processes. docs/operations.md describes them. Restart the services after a change.
redis = "redis://crumb:$redis_password@redis:6379/0"
log_format = "json"
model = "offline" # for tests; choose a real one, such as "openai:gpt-4.1-mini", and set its key in models.env

[[api_keys]]
name = "first key"
key_sha256 = "$(sha256 "$api_key")"
owner_id = "$owner"
TOML

cat >"$folder/models.env" <<ENV
# Keys of model providers, for the agent runners only.
# OPENAI_API_KEY=
ENV

printf '{"redis://exporter@redis:6379": "%s"}\n' "$exporter_password" >"$folder/exporter-passwords"
random 16 >"$folder/grafana-password"

cat <<TEXT
The secrets are in $(pwd)/$folder.
API key, which is stored nowhere else:  $api_key
Grafana, user admin, password:          $(cat "$folder/grafana-password")
TEXT
