#!/bin/sh
# Deploys a SavedModel in Cloud Storage on Vertex AI with tensorserve's image:
#
#   examples/containers/vertex.sh REGION NAME IMAGE gs://BUCKET/DIRECTORY
#
# IMAGE is in the Artifact Registry of REGION. The routes may be any; without them Vertex AI uses
# /v1/endpoints/…, which works as well.
set -eu
[ $# -eq 4 ] || {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
}
region=$1 name=$2 image=$3 model=$4
gcloud ai models upload --region="$region" --display-name="$name" --container-image-uri="$image" \
    --artifact-uri="$model" --container-ports=8080 --container-predict-route=/predict \
    --container-health-route=/health
gcloud ai endpoints create --region="$region" --display-name="$name"
newest() {
    gcloud ai "$1" list --region="$region" --filter="display_name=$name" --sort-by=~createTime \
        --format='value(name)' --limit=1
}
endpoint=$(newest endpoints)
gcloud ai endpoints deploy-model "$endpoint" --region="$region" --model="$(newest models)" \
    --display-name="$name" --machine-type=n1-standard-2
request=$(mktemp)
echo '{"instances": [1.0, 2.0, 5.0]}' >"$request"
gcloud ai endpoints predict "$endpoint" --region="$region" --json-request="$request"
rm "$request"
