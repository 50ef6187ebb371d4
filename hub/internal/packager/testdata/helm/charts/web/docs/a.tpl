{{ fail "ignored" }}
