#!/bin/sh
# An agent program in a shell, with curl and jq. Train it as it is:
#
#   tinkergym train-agent --tasks sums.jsonl --model nano-instruct --steps 20 -- sh curl_agent.sh
set -eu

question=$(echo "$TINKERGYM_TASK" | jq -r '"What is \(.a) + \(.b)?"')
expected=$(echo "$TINKERGYM_TASK" | jq '.a + .b')
body=$(jq -n --arg text "$question" '{model: "any", max_tokens: 8, messages: [{role: "user", content: $text}]}')

answer=$(curl -sS --fail-with-body --noproxy '*' "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -d "$body" | jq -r '.choices[0].message.content')

case " $answer " in
    *" $expected "*) echo 1 ;;
    *) echo 0 ;;
esac
