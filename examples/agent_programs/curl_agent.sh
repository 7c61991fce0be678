#!/bin/sh
# An agent program in a shell, with curl. Train it as it is:
#
#   tinkergym train-agent --tasks sums.jsonl --model nano-instruct --steps 20 -- sh curl_agent.sh
set -eu

number() { echo "$TINKERGYM_TASK" | sed "s/.*\"$1\": *\([0-9]*\).*/\1/"; }
a=$(number a) b=$(number b)
body='{"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "What is '"$a + $b"'?"}]}'

answer=$(curl -sS --fail-with-body --noproxy '*' "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -d "$body" | sed 's/.*"content":"\([^"]*\)".*/\1/')

case " $answer " in
    *" $((a + b)) "*) echo 1 ;;
    *) echo 0 ;;
esac
