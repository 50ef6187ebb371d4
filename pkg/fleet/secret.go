package fleet

// Masked stands for every value of a Secret where people may see it who may not read the Secret.
const Masked = "***"

// IsSecret reports that the object holds values that nobody must see elsewhere. Operators have kinds of that name, too,
// in groups of their own.
func (o ObjectID) IsSecret() bool { return o.Kind == "Secret" }

// LastApplied is the annotation in which kubectl keeps a copy of the whole object that it applied, values of a Secret
// included, and from which its next apply computes what to take away.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"
