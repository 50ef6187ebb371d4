package fleet

// Masked stands for every value of a Secret where people may see it who may not read the Secret.
const Masked = "***"

// IsSecret reports that the object holds values that nobody must see elsewhere. Operators have kinds of that name, too,
// in groups of their own.
func (o ObjectID) IsSecret() bool { return o.Kind == "Secret" }

// MaskSecret puts Masked in place of the values in the fields of a Secret that hold them.
func MaskSecret(object map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		values, _ := object[field].(map[string]any)
		for name := range values {
			values[name] = Masked
		}
	}
}
