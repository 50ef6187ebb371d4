package render

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestManyValuesAreMasked: a message is not searched for each of a module's values by itself.
func TestManyValuesAreMasked(t *testing.T) {
	values := map[string]any{"short": "x", "text": "of two\n lines and more"}
	for i := range 100_000 {
		values[fmt.Sprint(i)] = fmt.Sprintf("value-%06d", i)
	}
	data, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	line := "'x' is not `value-000017` of a vault, lines and more, dmFsdWUtMDAwMDE3, x and value-00001\n"
	began := time.Now()
	got := MaskValues(strings.Repeat(line, 8000), data)
	if want := strings.Repeat("'***' is not `***` of a vault, ***, ***, x and value-00001\n", 8000); got != want {
		t.Errorf("%.200s", got)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

// TestValueThatQuotesAnother: a value may be a text in which another, short one stands in quotes.
func TestValueThatQuotesAnother(t *testing.T) {
	values := `{"config": "{\"level\":\"info\",\"password\":\"canary-2\"}", "level": "info"}`
	if got, want := MaskValues(`cannot read {"level":"info","password":"canary-2"} at "info"`, json.RawMessage(values)), `cannot read *** at "***"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
