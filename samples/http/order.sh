#!/usr/bin/env bash
# Sends a message to a queue, receives it with a lock and completes it, with nothing but curl and openssl.
#
#   samples/http/order.sh [QUEUE] [CONNECTION_STRING]
#
# Without arguments: the queue `orders` of a Busbar on this machine (start one with `make run`).
# BUSBAR_CONNECTION_STRING is used when no connection string is given.
set -euo pipefail

default="Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
queue=${1:-orders}
connection=${2:-${BUSBAR_CONNECTION_STRING:-$default}}

# A value of the connection string: up to its semicolon, and keys may end in '='.
value() { tr ';' '\n' <<<"$connection" | sed -n "s/^$1=//p"; }
host=$(value Endpoint | sed 's,^sb://,,; s,/*$,,')
rule=$(value SharedAccessKeyName)
key=$(value SharedAccessKey)
# An emulator's connection string means plain HTTP; set CURL_CA_BUNDLE (see `busbar trust`) for the other kind.
scheme=https
[[ $(value UseDevelopmentEmulator) == true ]] && scheme=http
base=$scheme://$host

# Percent-encode a text: a token is made of encoded parts, and it is the encoded resource that is signed.
encode() {
  local text=$1 out= char i
  for ((i = 0; i < ${#text}; i++)); do
    char=${text:i:1}
    case $char in
      [a-zA-Z0-9._~-]) out+=$char ;;
      *) printf -v char '%%%02X' "'$char"; out+=$char ;;
    esac
  done
  printf '%s' "$out"
}

# A shared access signature: for this queue and what is below it, for five minutes.
resource=$(encode "$base/$queue")
expiry=$(($(date +%s) + 300))
hexkey=$(printf '%s' "$key" | od -An -v -tx1 | tr -d ' \n')
signature=$(printf '%s\n%s' "$resource" "$expiry" |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$hexkey" -binary | openssl base64 -A)
token="SharedAccessSignature sr=$resource&sig=$(encode "$signature")&se=$expiry&skn=$(encode "$rule")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One request: prints the status; the headers and the body of the answer are in $work. The token goes through a file,
# so that it is in no list of processes (openssl above takes the key as an argument only: sign elsewhere on shared machines).
printf 'Authorization: %s\n' "$token" >"$work/token"
request() {
  curl --silent --show-error --max-time 70 --header "@$work/token" \
    --dump-header "$work/headers" --output "$work/body" --write-out '%{http_code}' "$@"
}

expect() {
  local wanted=$1 what=$2 status=$3
  if [[ $status != "$wanted" ]]; then
    echo "$what: HTTP $status, not $wanted" >&2
    cat "$work/body" >&2
    exit 1
  fi
  echo "$what: $status"
}

header() { tr -d '\r' <"$work/headers" | sed -n "s/^$1: //Ip"; }

expect 201 "send" "$(request --request POST "$base/$queue/messages" \
  --header 'Content-Type: text/plain; charset=utf-8' \
  --header 'BrokerProperties: {"Label": "order", "TimeToLive": 3600}' \
  --header 'Priority: "High"' \
  --data-binary 'two coffees, one croissant')"

expect 201 "peek-lock" "$(request --request POST --data '' "$base/$queue/messages/head?timeout=30")"
echo "  body:              $(cat "$work/body")"
echo "  Priority:          $(header Priority)"
echo "  BrokerProperties:  $(header BrokerProperties)"
location=$(header Location)

expect 200 "complete" "$(request --request DELETE "$location")"
