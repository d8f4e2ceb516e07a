#!/usr/bin/env bash
# Runs on each machine of launch/compute_engine/group, as its startup script: trains in
# a container until nothing is left to do, then leaves the group, which deletes it.
#
# Attributes of the machine: train-image, train-options (one option on each line),
# train-restarts, train-wait (seconds).

set -uo pipefail

RUN_AGAIN=75
server=http://metadata.google.internal/computeMetadata/v1/instance
folder=${DPS_TF_FOLDER:-/var/lib/dps_tf}

# metadata PATH: prints what the metadata server says.
metadata() {
  curl --fail --silent --show-error --header 'Metadata-Flavor: Google' "$server/$1"
}

# is_shutting_down: whether the machine is being preempted or deleted.
is_shutting_down() { [ "$(systemctl is-system-running)" = stopping ]; }

# train: runs the container; its exit code is that of training.
train() {
  docker rm --force dps_tf >/dev/null 2>&1
  docker run --rm --name=dps_tf --privileged --net=host --stop-timeout=25 \
    --volume="$folder:$folder:ro" "$image" --flagfile="$folder/options"
}

# leave: the group shrinks by this machine. It was made by projects/P/zones/Z/.../GROUP.
leave() {
  local maker zone
  maker=$(metadata attributes/created-by) || return
  zone=$(metadata zone) || return
  gcloud compute instance-groups managed delete-instances "${maker##*/}" \
    --instances="$(metadata name)" --zone="${zone##*/}" --quiet
}

mkdir -p "$folder"
image=$(metadata attributes/train-image) &&
  metadata attributes/train-options >"$folder/options" &&
  restarts=$(metadata attributes/train-restarts) &&
  seconds=$(metadata attributes/train-wait) || exit 1
# Only images of Google's own registries ask for this.
gcloud auth configure-docker "${image%%/*}" --quiet >/dev/null 2>&1

for ((start = 1; start <= restarts + 1; start++)); do
  train
  status=$?
  echo "dps_tf: start $start left with $status"
  if is_shutting_down; then exit; fi
  # 75: run again; 125: docker itself, which may lack the network; above 128: killed.
  if [ "$status" -ne "$RUN_AGAIN" ] && [ "$status" -lt 125 ]; then break; fi
  sleep "$seconds"
done
leave
