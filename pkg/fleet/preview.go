package fleet

// What a preview says of an object.
const (
	// PreviewCreate: it would be made.
	PreviewCreate = "Create"
	// PreviewChange: fields of it would change.
	PreviewChange = "Change"
	// PreviewAdopt: it is there, not the module's, and would become that.
	PreviewAdopt = "Adopt"
	// PreviewRecreate: it would be deleted and made again, for a field cannot be changed.
	PreviewRecreate = "Recreate"
	// PreviewDelete: the module does not list it any more, and it would be deleted.
	PreviewDelete = "Delete"
	// PreviewRelease: it is not listed any more, and would stay without Towline's marks.
	PreviewRelease = "Release"
	// PreviewHandOver: it is not listed any more, and would go to another module.
	PreviewHandOver = "HandOver"
	// PreviewKeep: it is not listed any more, and would stay.
	PreviewKeep = "Keep"
	// PreviewRefuse: the module would not get it as it says.
	PreviewRefuse = "Refuse"
)

// ReasonUnchecked is of an object that would be made or changed and that nobody can judge before what it needs is there.
const ReasonUnchecked = "Unchecked"

// Preview is what a sync would do in a cluster, as its API server says without storing anything.
type Preview struct {
	// Objects that would not stay as they are, or that the module would not get.
	Objects []PreviewedObject
	// Unchanged is how many are as the sync says.
	Unchanged int
}

// PreviewedObject is what would become of one.
type PreviewedObject struct {
	ID      ObjectID
	Version string
	// Action is one of the words above, Reason why it is refused, kept or unchecked, Message the same in words.
	Action, Reason, Message string
	// By has the object or a field of it, or gets it.
	By     string
	Fields []FieldChange
}

// FieldChange is one field that would get another value; Live and Want are JSON, empty where there is no value.
type FieldChange struct{ Field, Live, Want string }
