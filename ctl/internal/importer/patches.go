package importer

// patches says that patches of rendered objects are not carried over.
func (d *draft) patches(f field) {
	for _, item := range f.items() {
		item.drop("write it into patches of a kustomization.yaml")
	}
}
