# Memory of one tenant that another opens (cuIpcOpenMemHandle): charged once, to the one that made it, and to somebody also when that one
# is gone. What the driver counts as whose is not documented, so the figures are noted.
build "$gpu/import.cu"
"$mica" create giver -m 8GiB -s 50 >/dev/null; "$mica" create taker -m 4GiB -s 50 >/dev/null
# MiB that a virtual GPU is held to: charged, and seen beyond the charge.
held() { echo $((($(field "$1" memory_charged_bytes) + $(field "$1" memory_unattributed_bytes)) >> 20)); }
on_card() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1; }
background "$mica" exec giver -- "$work/import" make 2048 >"$work/made" 2>&1; giver=$child
if ! wait_for 30 grep -q handle "$work/made"; then fail "shared memory" "$(cat "$work/made")"; else
  background "$mica" exec taker -- "$work/import" open "$(sed -n 's/^handle //p' "$work/made")" >"$work/opened" 2>&1; taker=$child
  if ! wait_for 30 grep -q held "$work/opened"; then skip "shared memory: it cannot be opened: $(cat "$work/opened")"; else
    sleep 2.5
    note "2048 MiB of giver's, opened by taker: giver $(held giver) MiB, taker $(held taker) MiB, the card $(on_card) MiB"
    [ "$(held giver)" -ge 2048 ] && [ "$(held taker)" -lt 2048 ] && pass "opened memory is charged once" || fail "opened memory is charged once" "giver $(held giver) MiB, taker $(held taker) MiB"
    before=$(on_card); kill -9 "$giver"; wait "$giver" 2>/dev/null; sleep 3
    freed=$((before - $(on_card)))
    note "giver was killed: the card gave back $freed MiB; giver $(held giver) MiB, taker $(held taker) MiB"
    # Its context goes in any case, some 520 MiB.
    [ "$freed" -ge 2048 ] || [ "$(held taker)" -ge 2048 ] && pass "memory whose maker is gone is gone or charged" || fail "memory whose maker is gone is gone or charged" "$freed MiB came back, taker is held to $(held taker) MiB"
    end "$taker"
  fi
fi
end "$giver"; "$mica" rm giver --force >/dev/null 2>&1; "$mica" rm taker --force >/dev/null 2>&1
